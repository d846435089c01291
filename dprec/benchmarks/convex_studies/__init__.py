"""Learning with sparse gradients: measurements of means, risks and models of clicks."""
