package objects

import "slices"

// sizeClasses are the sizes of the runtime's small allocations (internal/runtime/gc, Go 1.26).
var sizeClasses = []int{
	0, 8, 16, 24, 32, 48, 64, 80, 96, 112, 128, 144, 160, 176, 192, 208, 224, 240, 256, 288, 320, 352, 384, 416, 448, 480,
	512, 576, 640, 704, 768, 896, 1024, 1152, 1280, 1408, 1536, 1792, 2048, 2304, 2688, 3072, 3200, 3456, 4096, 4864,
	5376, 6144, 6528, 6784, 6912, 8192, 9472, 9728, 10240, 10880, 12288, 13568, 14336, 16384, 18432, 19072, 20480, 21760,
	24576, 27264, 28672, 32768,
}

const pageSize = 8192

// allocated returns the memory that an allocation of n bytes uses.
func allocated(n int) int {
	if n > sizeClasses[len(sizeClasses)-1] {
		return (n + pageSize - 1) / pageSize * pageSize
	}
	i, _ := slices.BinarySearch(sizeClasses, n)
	return sizeClasses[i]
}
