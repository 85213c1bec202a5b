"""What is computed for each edge, as expressions, and the operators of halfgnn to which they are lowered.

They are built from calls of PyTorch by halfgnn.pyg.drop_in, and from FX graphs by halfgnn.compiled.
"""
