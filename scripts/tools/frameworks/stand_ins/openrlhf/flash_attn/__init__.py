"""A stand-in for flash-attn, which cannot be imported without CUDA's compiler or a GPU.

OpenRLHF imports five of its functions before it reads an argument, and calls them on GPUs only.
"""
