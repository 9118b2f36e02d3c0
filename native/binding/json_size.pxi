from json_size cimport CppJsonSize, JsonExcess, JsonLimits, json_size, string_view

cdef dict EXCESSES = {
    <int> JsonExcess.values: "values",
    <int> JsonExcess.depth: "depth",
    <int> JsonExcess.fields: "fields",
}


def json_excess(const unsigned char[::1] text not None, *, size_t values, size_t depth, size_t fields):
    cdef JsonLimits limits
    cdef CppJsonSize size
    limits.values, limits.depth, limits.fields = values, depth, fields
    if text.shape[0] == 0:
        return None
    with nogil:
        size = json_size(string_view(<const char *> &text[0], text.shape[0]), limits)
    if size.excess == JsonExcess.none:
        return None
    return EXCESSES[<int> size.excess], size.key.data()[:size.key.size()]
