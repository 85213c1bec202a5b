"""The wrappers of intercepted functions, by the library whose arguments they take."""
