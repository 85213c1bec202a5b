"""What several packages of halfgnn share: checks of arguments and operands, precision, autograd. It imports none of them."""
