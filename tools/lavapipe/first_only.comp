#version 450
layout(local_size_x = 8) in;
layout(binding = 0) buffer First { uint first[]; };
void main() { first[gl_GlobalInvocationID.x] += 1; }
