"""The AWS surface: SageMaker's control plane and runtime, driven by AWS's own service models."""
