"""Learning with sparse gradients: what is measured of means, of risks and of models of clicks."""
