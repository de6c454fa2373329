package memory

// The memory of decoded JSON values in bytes, as allocated by Go 1.26 on 64-bit systems. TestSizes compares the
// estimates with the actual allocations.
const (
	slot      = 16 // an interface value
	boxed     = 16 // a number or the header of a string, to which an interface value points
	mapHeader = 48
	// mapGroup is a group of eight entries. A map has at least one group unless it is empty. If it grows, it has up to
	// twice as many groups as it needs.
	mapGroup       = 288
	entriesOfGroup = 4
	sliceHeader    = 24
)

// Of returns the memory of a JSON value, such as the content of an unstructured object.
func Of(value any) int64 {
	switch value := value.(type) {
	case map[string]any:
		size := OfMap(len(value))
		for key, field := range value {
			size += OfString(len(key)) + Of(field)
		}
		return size
	case []any:
		size := OfList(len(value))
		for _, item := range value {
			size += Of(item)
		}
		return size
	case string:
		return boxed + OfString(len(value))
	case nil, bool:
		return 0
	}
	return boxed
}

// OfMap returns the memory of a map, without its keys and values.
func OfMap(entries int) int64 {
	if entries == 0 {
		return mapHeader
	}
	return mapHeader + mapGroup*int64(1+entries/entriesOfGroup)
}

// OfList returns the memory of a list, without its items.
func OfList(items int) int64 { return sliceHeader + 2*slot*int64(items) } // slices grow to twice their size

// OfString returns the memory of the bytes of a string.
func OfString(length int) int64 { return int64(length) + length8(length) }

// length8 rounds up: allocations are up to an eighth larger than requested, and at least 8 bytes.
func length8(length int) int64 { return int64(length)/8 + 8 }

// OfJSON returns the memory of the value that a JSON text is decoded to. The text need not be valid.
func OfJSON[T string | []byte](text T) (size int64) {
	for i := 0; i < len(text); i++ {
		switch c := text[i]; c {
		case '"':
			start := i + 1
			for i++; i < len(text) && text[i] != '"'; i++ {
				if text[i] == '\\' {
					i++
				}
			}
			size += boxed + OfString(i-start)
		case '{':
			if size += mapHeader; i+1 < len(text) && text[i+1] != '}' {
				size += mapGroup
			}
		case '[':
			size += sliceHeader + 2*slot
		case ',':
			size += max(2*slot, mapGroup/entriesOfGroup)
		case '-', '0', '1', '2', '3', '4', '5', '6', '7', '8', '9':
			size += boxed
			for i+1 < len(text) && !endsNumber(text[i+1]) {
				i++
			}
		}
	}
	return size
}

func endsNumber(c byte) bool {
	switch c {
	case ',', '}', ']', ' ', '\n', '\r', '\t':
		return true
	}
	return false
}
