"""The stand-ins of intercepted functions, by the library whose arguments they take."""
