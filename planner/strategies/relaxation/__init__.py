"""Lower bounds: stage LP, parametric min cut, certificates, order-free bound."""
