"""Random programs of torch_geometric, run with and without the drop-in: python -m laboratory.programs."""
