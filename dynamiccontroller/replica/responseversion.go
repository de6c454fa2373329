package replica

import (
	"bytes"

	"github.com/dynamic-controller/engine/internal/wire"
)

// versionReader finds the resourceVersion of an encoded object.
type versionReader interface {
	// read continues with the next part of the object, which can be split anywhere. It must not be called any more once it
	// has found the version.
	read(part []byte, last bool) (version string, found bool)
}

// jsonVersion finds the string metadata.resourceVersion. It keeps nothing else of the object, and does not check the
// syntax.
type jsonVersion struct {
	depth      int    // of objects and lists
	inString   bool   // between quotation marks
	escaped    bool   // after a backslash in a string
	isValue    bool   // the next string at this depth is a value, not a key
	inMetadata bool   // in the value of the key metadata of the object
	isVersion  bool   // in the value of its key resourceVersion
	text       []byte // the beginning of the current string, up to maxText bytes
}

// maxText is longer than the keys and than each version.
const maxText = 64

func (v *jsonVersion) read(part []byte, _ bool) (version string, found bool) {
	for i := 0; i < len(part); i++ {
		c := part[i]
		switch {
		case v.escaped:
			v.escaped = false
		case v.inString && c == '\\':
			v.escaped = true
		case v.inString && c == '"':
			if v.inString = false; v.endString() {
				return string(v.text), true
			}
		case v.inString:
			plain := plainText(part[i:])
			v.text = append(v.text, plain[:min(len(plain), maxText-len(v.text))]...)
			i += len(plain) - 1
		case c == '"':
			v.inString, v.text = true, v.text[:0]
		case c == '{', c == '[':
			v.depth++
			v.isValue = c == '['
			v.inMetadata = v.inMetadata && (c == '{' || v.depth != 2)
		case c == '}', c == ']':
			v.depth--
			v.inMetadata = v.inMetadata && v.depth > 1
		case c == ',':
			v.isValue = false
		case c == ':':
			v.isValue = true
		}
	}
	return "", false
}

// plainText returns the part of a string before the next quotation mark or backslash.
func plainText(text []byte) []byte {
	for i, c := range text {
		if c == '"' || c == '\\' {
			return text[:i]
		}
	}
	return text
}

// endString is called at the end of a string. It reports whether the string is the version.
func (v *jsonVersion) endString() bool {
	switch {
	case v.depth == 1 && !v.isValue:
		v.inMetadata = string(v.text) == "metadata"
	case v.depth == 2 && v.inMetadata && !v.isValue:
		v.isVersion = string(v.text) == "resourceVersion"
	case v.depth == 2 && v.inMetadata && v.isVersion:
		return true
	}
	return false
}

// maxProtobuf is the maximum length of an encoded object whose version is found. The API server rejects larger objects.
const maxProtobuf = 4 << 20

// protobufVersion finds the version in a message, of which it keeps a copy until the end.
type protobufVersion struct {
	content []byte
	tooLong bool
}

// The numbers of fields in messages of Kubernetes.
const (
	rawInUnknown        = 2 // runtime.Unknown.Raw
	metadataInObject    = 1 // ObjectMeta of all objects
	versionInObjectMeta = 6 // ObjectMeta.ResourceVersion
)

// protobufPrefix precedes an encoded runtime.Unknown.
const protobufPrefix = "k8s\x00"

func (v *protobufVersion) read(part []byte, last bool) (version string, found bool) {
	if v.tooLong = v.tooLong || len(v.content)+len(part) > maxProtobuf; v.tooLong {
		v.content = nil
		return "", false
	}
	v.content = append(v.content, part...)
	raw, ok := bytes.CutPrefix(v.content, []byte(protobufPrefix))
	if !last || !ok {
		return "", false
	}
	return string(fieldOf(fieldOf(fieldOf(raw, rawInUnknown), metadataInObject), versionInObjectMeta)), true
}

func fieldOf(message []byte, number int) []byte {
	for m := wire.Read(message); m.Next(); {
		if int(m.Number) == number {
			return m.Value
		}
	}
	return nil
}
