"""What expressions are lowered to: reductions, linear layers, attention, products with weights of relations."""
