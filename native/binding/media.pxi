from libc.stdint cimport int32_t, int64_t
from libcpp cimport bool as cbool
from libcpp.memory cimport shared_ptr, unique_ptr
from libcpp.string cimport string
from libcpp.vector cimport vector

from llama cimport llama_token
from media cimport (
    CppAudience,
    CppMediaChunk,
    CppMediaEncoder,
    MediaInput,
    MediaParams,
    MediaPart,
    MediaRows,
    make_audience,
    make_media_encoder,
    parts_of,
    size_of_image,
)


def image_size(bytes data not None):
    """Return the width and the height that an image file's header says, or None."""
    cdef int32_t width = 0
    cdef int32_t height = 0
    if not size_of_image(data, len(data), &width, &height):
        return None
    return width, height


cdef class _MediaRows(_Array):
    cdef shared_ptr[const MediaRows] rows


cdef class MediaChunk:
    """A picture's run of tokens in a prompt. Made by MediaEncoder.parts."""

    cdef shared_ptr[CppMediaChunk] c_obj
    cdef readonly int32_t first_token, n_tokens, n_pos
    cdef readonly cbool non_causal, divisible

    def __init__(self):
        raise TypeError("a MediaChunk is made by MediaEncoder.parts")

    @property
    def tokens(self):
        return list(range(self.first_token, self.first_token - self.n_tokens, -1))

    @property
    def encoded(self):
        return self.c_obj.get().rows().get() != NULL

    @property
    def n_bytes(self):
        return self.c_obj.get().n_bytes()

    def rows(self):
        cdef _MediaRows shown = _MediaRows()
        shown.rows = self.c_obj.get().rows()
        if shown.rows.get() == NULL:
            return None
        return shown.show(shown.rows.get().data(), "f", sizeof(float), shown.rows.get().size())


cdef MediaChunk media_chunk(const shared_ptr[CppMediaChunk] & made):
    cdef MediaChunk chunk = MediaChunk.__new__(MediaChunk)
    chunk.c_obj = made
    chunk.first_token = made.get().layout().get().first_token
    chunk.n_tokens = made.get().layout().get().n_tokens
    chunk.n_pos = made.get().layout().get().n_pos
    chunk.non_causal = made.get().layout().get().non_causal
    chunk.divisible = made.get().layout().get().is_divisible()
    return chunk


cdef vector[MediaInput] media_inputs(object runs) except *:
    cdef vector[MediaInput] inputs
    cdef MediaInput one
    for start, chunk in runs:
        one.start = start
        one.chunk = (<MediaChunk?> chunk).c_obj
        inputs.push_back(one)
    return inputs


cdef class Audience:
    """The requests that wait for one encoding. Any thread may join."""

    cdef shared_ptr[CppAudience] c_obj

    def __cinit__(self):
        self.c_obj = make_audience()

    def join(self, CancelFlag flag not None):
        self.c_obj.get().join(<shared_ptr[const CppCancelFlag]> flag.c_obj)

    def leave(self):
        self.c_obj.get().leave()

    def has_left(self):
        return self.c_obj.get().has_left()


cdef class MediaEncoder:
    """A projector: makes embeddings of pictures and sounds for one model."""

    cdef unique_ptr[CppMediaEncoder] c_obj
    cdef readonly cbool has_vision, has_audio
    cdef readonly int32_t sample_rate

    def __cinit__(self, Model model not None, path, *, int n_threads, cbool offload=True, image_min_tokens=None,
                  image_max_tokens=None, cbool every_node=False):
        cdef MediaParams params
        cdef string c_path = os.fsencode(path)
        params.n_threads = n_threads
        params.offload = offload
        params.image_min_tokens = -1 if image_min_tokens is None else image_min_tokens
        params.image_max_tokens = -1 if image_max_tokens is None else image_max_tokens
        params.every_node = every_node
        with nogil:
            self.c_obj = make_media_encoder(model.c_obj, c_path, params)
        self.has_vision = self.c_obj.get().has_vision()
        self.has_audio = self.c_obj.get().has_audio()
        self.sample_rate = self.c_obj.get().sample_rate()

    def __dealloc__(self):
        with nogil:
            self.c_obj.reset()

    @property
    def polls(self):
        return self.c_obj.get().polls()

    def parts(self, bytes data not None, *, cbool audio, CancelFlag flag not None, double seconds, first=None):
        cdef const char * c_data = data
        cdef size_t size = len(data)
        cdef llama_token c_first = 0 if first is None else first
        cdef vector[MediaPart] made
        cdef size_t i
        with nogil:
            made = parts_of(self.c_obj.get()[0], c_data, size, audio, c_first, flag.c_obj.get()[0], seconds)
        found = []
        for i in range(made.size()):
            found.append(media_chunk(made[i].chunk) if made[i].chunk.get() != NULL else list(made[i].tokens))
        return found

    def n_image_tokens(self, int width, int height):
        cdef int64_t count
        with nogil:
            count = self.c_obj.get().n_image_tokens(width, height)
        return count

    def encode(self, MediaChunk chunk not None, Audience audience not None):
        cdef shared_ptr[const CppAudience] listeners = <shared_ptr[const CppAudience]> audience.c_obj
        cdef cbool done
        with nogil:
            done = self.c_obj.get().encode(chunk.c_obj.get()[0], listeners)
        return done

    def raise_at(self, int node, CancelFlag flag not None):
        self.c_obj.get().raise_at(node, flag.c_obj)
