"""DPFormer's experiments: every model on every data set at every ε, from the files of finished runs."""
