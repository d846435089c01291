"""A private run: its plan, its steps on a model, its sentence. `dprec.training` has who drives it."""
