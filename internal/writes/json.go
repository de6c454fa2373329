package writes

import (
	"encoding/json"

	"k8s.io/apimachinery/pkg/labels"
)

// jsonObject finds the metadata of an object, and the details of a Status, in JSON. It keeps nothing else, and does not
// check the syntax.
type jsonObject struct {
	object   object
	depth    int    // of objects and lists
	inString bool   // between quotation marks
	escaped  bool   // after a backslash in a string
	isValue  bool   // the next string at this depth is a value, not a key
	text     []byte // the beginning of the current string, up to maxText bytes
	encoded  bool   // text contains escape sequences
	// keys are the current keys at the depths 1 to 3.
	keys [4]string
}

// maxText is longer than each value and each key of a label.
const maxText = 320

func (j *jsonObject) parse(part []byte, last bool) (object, bool) {
	for i := 0; i < len(part); i++ {
		c := part[i]
		switch {
		case j.escaped:
			j.escaped = false
			j.add([]byte{'\\', c})
		case j.inString && c == '\\':
			j.escaped, j.encoded = true, true
		case j.inString && c == '"':
			j.inString = false
			j.endString()
		case j.inString:
			plain := plainText(part[i:])
			j.add(plain)
			i += len(plain) - 1
		case c == '"':
			j.inString, j.encoded, j.text = true, false, j.text[:0]
		case c == '{', c == '[':
			j.depth++
			j.isValue = c == '['
			if j.depth < len(j.keys) {
				j.keys[j.depth] = ""
			}
		case c == '}', c == ']':
			j.depth = max(j.depth-1, 0)
			if j.depth == 1 && j.keys[1] == "metadata" && j.object.version != "" {
				return j.object, true
			}
		case c == ',':
			j.isValue = false
		case c == ':':
			j.isValue = true
		case c >= '1' && c <= '9' && j.depth == 2 && j.keys[1] == "metadata" && j.keys[2] == "deletionGracePeriodSeconds":
			j.object.grace = true
		}
	}
	return j.object, last
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

// add adds to the current string.
func (j *jsonObject) add(part []byte) {
	j.text = append(j.text, part[:min(len(part), maxText-len(j.text))]...)
}

// endString is called at the end of a string.
func (j *jsonObject) endString() {
	text := string(j.text)
	if j.encoded && json.Unmarshal([]byte(`"`+text+`"`), &text) != nil {
		text = "" // incomplete
	}
	switch {
	case j.depth < 1 || j.depth >= len(j.keys):
	case !j.isValue:
		j.keys[j.depth] = text
	case j.depth == 2 && j.keys[1] == "metadata":
		j.setMetadata(j.keys[2], text)
	case j.depth == 3 && j.keys[1] == "metadata" && j.keys[2] == "finalizers":
		j.object.finalizers = true
	case j.depth == 3 && j.keys[1] == "metadata" && j.keys[2] == "labels":
		if j.object.labels == nil {
			j.object.labels = labels.Set{}
		}
		j.object.labels[j.keys[3]] = text
	case j.depth == 2 && j.keys[1] == "details" && j.keys[2] == "uid":
		j.object.detailsUID = text
	}
}

func (j *jsonObject) setMetadata(key, value string) {
	switch o := &j.object; key {
	case "name":
		o.name = value
	case "uid":
		o.uid = value
	case "resourceVersion":
		o.version = value
	case "deletionTimestamp":
		o.deleting = true
	}
}
