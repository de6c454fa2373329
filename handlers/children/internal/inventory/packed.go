package inventory

import (
	"bytes"
	"compress/flate"
	"encoding/base64"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
)

const (
	// maxPackedBytes limits the size of packed namespaces before their compression, and maxUnpackedBytes the memory that
	// they take as part of inventory entries. The compression ratio is up to 1,000, so they are limited separately from
	// the annotation, which anyone who can update a parent can write.
	maxPackedBytes, maxUnpackedBytes = 512 << 10, 4 << 20
	// sharedMark is the first byte of a packed namespace that shares no bytes with the namespace before it.
	sharedMark      = 0x80
	maxSharedPrefix = 0xff - sharedMark
)

// pack returns the namespaces of all entries in a short form, and reports whether unpack accepts it. Each line lists
// the namespaces that have the same kinds of children, so that each namespace occurs only once. A line contains the
// indexes of the kinds, and the sorted namespaces. Each namespace is preceded by a byte with the number of bytes that
// it shares with the namespace before it. The lines are compressed.
func (i Inventory) pack() (text string, valid bool) {
	var lines bytes.Buffer
	unpacked := 0
	groups := i.namespacesByKinds()
	for _, kinds := range slices.Sorted(maps.Keys(groups)) {
		lines.WriteString(kinds)
		before := ""
		for _, namespace := range sorted(groups[kinds]) {
			shared := sharedPrefix(before, namespace)
			lines.WriteByte(byte(sharedMark + shared))
			lines.WriteString(namespace[shared:])
			unpacked += unpackedBytes(namespace, strings.Count(kinds, ",")+1)
			before = namespace
		}
		lines.WriteByte('\n')
	}
	if lines.Len() > maxPackedBytes || unpacked > maxUnpackedBytes {
		return "", false
	}
	var out strings.Builder
	encoder := base64.NewEncoder(base64.RawStdEncoding, &out)
	compressor, _ := flate.NewWriter(encoder, flate.BestSpeed) // the level is valid
	_, _ = compressor.Write(lines.Bytes())                     // a Builder returns no errors
	_ = compressor.Close()
	_ = encoder.Close()
	return out.String(), true
}

// namespacesByKinds returns the namespaces of all entries by the indexes of the entries that list them, such as "0,2".
func (i Inventory) namespacesByKinds() map[string][]string {
	kinds := map[string][]byte{} // by namespace
	for n, entry := range i {
		for _, namespace := range entry.Namespaces {
			indexes := kinds[namespace]
			if indexes != nil {
				indexes = append(indexes, ',')
			}
			kinds[namespace] = strconv.AppendInt(indexes, int64(n), 10)
		}
	}
	groups := map[string][]string{}
	for namespace, indexes := range kinds {
		groups[string(indexes)] = append(groups[string(indexes)], namespace)
	}
	return groups
}

func sharedPrefix(a, b string) int {
	n := 0
	for n < min(len(a), len(b), maxSharedPrefix) && a[n] == b[n] {
		n++
	}
	return n
}

// unpackedBytes estimates the memory for a namespace in several entries.
func unpackedBytes(namespace string, entries int) int {
	const header = 16 // of a string
	return len(namespace) + header*entries
}

// unpack adds packed namespaces to the entries. It stops at the first malformed line, and ignores namespaces beyond the
// limits.
func (i Inventory) unpack(text string) {
	compressed := flate.NewReader(base64.NewDecoder(base64.RawStdEncoding, strings.NewReader(text)))
	lines, err := io.ReadAll(io.LimitReader(compressed, maxPackedBytes+1))
	if err != nil || len(lines) > maxPackedBytes {
		return
	}
	left := maxUnpackedBytes
	for line := range bytes.Lines(lines) {
		if !i.unpackLine(bytes.TrimSuffix(line, []byte("\n")), &left) {
			break
		}
	}
	for n := range i {
		i[n].Namespaces = sorted(i[n].Namespaces)
	}
}

// unpackLine adds the namespaces in a line to the entries, and subtracts their size from left. It reports whether the
// line is valid.
func (i Inventory) unpackLine(line []byte, left *int) bool {
	end := indexOfMark(line)
	entries, valid := i.indexes(string(line[:end]))
	before := ""
	for line = line[end:]; valid && len(line) > 0; line = line[end:] {
		shared := int(line[0] - sharedMark)
		end = 1 + indexOfMark(line[1:])
		if shared > len(before) {
			return false
		}
		namespace := before[:shared] + string(line[1:end])
		*left -= unpackedBytes(namespace, len(entries))
		if *left < 0 || namespace <= before || !isNamespace(namespace) {
			return false
		}
		for _, n := range entries {
			i[n].Namespaces = append(i[n].Namespaces, namespace)
		}
		before = namespace
	}
	return valid
}

// indexOfMark returns the index of the first byte that precedes a namespace, or the length of the line if there is
// none.
func indexOfMark(line []byte) int {
	if n := slices.IndexFunc(line, func(b byte) bool { return b >= sharedMark }); n >= 0 {
		return n
	}
	return len(line)
}

// indexes parses a list of indexes of entries, and reports whether it is valid.
func (i Inventory) indexes(text string) (indexes []int, valid bool) {
	last := -1
	for part := range strings.SplitSeq(text, ",") {
		n, err := strconv.Atoi(part)
		if err != nil || n <= last || n >= len(i) {
			return nil, false
		}
		indexes, last = append(indexes, n), n
	}
	return indexes, true
}
