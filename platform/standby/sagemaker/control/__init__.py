"""The operations of the control plane, one module for each kind of resource."""
