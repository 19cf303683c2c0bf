"""What engines compute on: GPUs by NVML, the host's processors by the kernel, and who may use which core."""
