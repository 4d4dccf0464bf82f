/* A mock of the NVIDIA driver's library: no machine of the tests has the real one. It answers what it is built with. */
#include <stdlib.h>

int cuDriverGetVersion(int *version) { *version = MOCK_VERSION; return 0; }
int cuInit(unsigned flags) { (void)flags; if (MOCK_CODE < 0) abort(); return MOCK_CODE; }
int cuDeviceGetCount(int *count) { *count = MOCK_DEVICES; return 0; }
