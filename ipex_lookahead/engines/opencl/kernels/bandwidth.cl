// Measures read bandwidth: each work-item reads 16 bytes at a time, a grid apart.
kernel void read_all(global const uint4* from, int count, global uint* out) {
  uint4 all = (uint4)(0);
  for (int i = get_global_id(0); i < count; i += get_global_size(0)) all ^= from[i];
  out[get_global_id(0)] = all.x ^ all.y ^ all.z ^ all.w;
}

// Measures copy bandwidth, in the same order. With a count of 0 it measures a launch.
kernel void copy_all(global const uint4* from, int count, global uint4* out) {
  for (int i = get_global_id(0); i < count; i += get_global_size(0)) out[i] = from[i];
}
