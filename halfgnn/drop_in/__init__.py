"""What the drop-ins for DGL and torch_geometric share: wrappers that are bound and restored, and which calls they may take."""
