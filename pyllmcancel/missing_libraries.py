"""The message for a compiled module that cannot be loaded: a build for a GPU, on a machine without the GPU's
libraries.
"""

from __future__ import annotations

import re

MODULE = "_native"

# The provider of a library, by the beginning of the library's name. The first match counts.
PROVIDERS = (
    (r"libcuda\.|nvcuda", "NVIDIA's driver", "cuda"),
    (
        r"libcudart|libcublas|libnccl|cudart|cublas",
        "NVIDIA's CUDA toolkit (pip: nvidia-cublas, nvidia-cuda-runtime)",
        "cuda",
    ),
    (r"libvulkan|vulkan-1", "Vulkan's loader (Debian, Ubuntu: libvulkan1)", "vulkan"),
    (r"libamdhip|libhip|librocblas|librccl", "AMD's ROCm", "hip"),
    (r"libsycl|libmkl|libdnnl|libze_loader|libsvml|libimf|libintlc|libirng|libur_", "Intel's oneAPI", "sycl"),
    (r"libopenblas|libblas|libcblas|libblis|libflexiblas", "BLAS (Debian, Ubuntu: libopenblas0)", "blas"),
)

# glibc's loader, musl's, and macOS's.
NAMES = (
    re.compile(r"^(\S+): cannot open shared object file"),
    re.compile(r"Error loading shared library (\S+?):"),
    re.compile(r"Library not loaded: (\S+)"),
)


def missing_library(error: ImportError) -> str | None:
    """Return a sentence or two about an error of `import`; None if no library of the compiled module is missing."""
    # Python names a module that its loader could not open by the last part of its name alone.
    if (error.name or "").rpartition(".")[2] != MODULE or isinstance(error, ModuleNotFoundError):
        return None
    name = next((found[1].rpartition("/")[2] for pattern in NAMES if (found := pattern.search(str(error)))), None)
    if name is None:
        return None
    for names, provider, backend in PROVIDERS:
        if re.match(names, name):
            return (
                f"{name} is missing, which comes with {provider}: this pyllmcancel was built for it "
                f"(PYLLMCANCEL_BACKEND={backend}). Install it, or name its folder in LD_LIBRARY_PATH; "
                f"or install pyllmcancel without {backend}."
            )
    return (
        f"{name} is missing, which this pyllmcancel was linked with. Install it, or name its folder in LD_LIBRARY_PATH."
    )
