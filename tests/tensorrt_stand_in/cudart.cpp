// A stand-in for the CUDA runtime library: memory of the GPU is memory of this machine.
#include <cstdlib>
#include <cstring>

extern "C" {
static const char *gpus() { const char *found = std::getenv("STAND_IN_GPUS"); return found ? found : "1"; }
const char *cudaGetErrorString(int code) { return code == 100 ? "no CUDA-capable device is detected" : "failure"; }
int cudaGetDeviceCount(int *count) { *count = std::atoi(gpus()); return *count ? 0 : 100; }
int cudaGetDeviceProperties(void *properties, int) { std::strcpy((char *)properties, "Stand-In GPU"); return 0; }
int cudaMemGetInfo(size_t *free, size_t *total) { *free = 1ull << 30; *total = 8ull << 30; return 0; }
int cudaRuntimeGetVersion(int *version) { *version = 12060; return 0; }
int cudaMalloc(void **address, size_t size) { *address = std::malloc(size); return *address ? 0 : 2; }
int cudaFree(void *address) { std::free(address); return 0; }
int cudaStreamCreate(void **stream) { *stream = std::malloc(1); return 0; }
int cudaStreamDestroy(void *stream) { std::free(stream); return 0; }
int cudaMemcpyAsync(void *to, const void *from, size_t size, int kind, void *stream) {
    if ((kind != 1 && kind != 2) || !stream) return 1;
    std::memcpy(to, from, size);
    return 0;
}
int cudaStreamSynchronize(void *stream) { return stream ? 0 : 1; }
}
