package objects

import (
	"fmt"
	"slices"
	"strconv"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/json"

	"github.com/dynamic-controller/engine/internal/wire"
)

// checkContent returns an error if the part of the object that the projection keeps cannot be decoded. Such an object
// would make each list that contains it fail.
func (p *parsed) checkContent(projection Projection) error {
	kept := p.metadata
	if projection >= Full {
		kept = p.object
	}
	if kept.to == 0 {
		return nil
	}
	if p.exponent || hasLongNumber(p.in) {
		if err := checkNumbers(p.in[kept.from:kept.to]); err != nil {
			return err
		}
	}
	if p.hasPlainMetadata() {
		return nil
	}
	return p.decodeMetadata()
}

// decodeMetadata decodes the metadata, apart from the managedFields. If a key occurs twice, its last value counts.
func (p *parsed) decodeMetadata() error {
	data := p.in[p.metadata.from:p.metadata.to]
	if cut := p.managedFields; cut.to > 0 {
		data = slices.Concat(p.in[p.metadata.from:cut.from], p.in[cut.to:p.metadata.to])
	}
	fields := map[string]any{}
	err := json.Unmarshal(data, &fields)
	if err == nil {
		if data, err = json.Marshal(fields); err == nil {
			err = json.Unmarshal(data, &metav1.ObjectMeta{})
		}
	}
	if err != nil {
		return fmt.Errorf("metadata: %w", err)
	}
	return nil
}

// hasPlainMetadata reports whether it is obvious that the metadata can be decoded. If it returns false, the metadata
// must be decoded to find out.
func (p *parsed) hasPlainMetadata() bool {
	m := membersOf(p.in, p.metadata.from)
	for m.next() {
		key, err := unquote(p.in, m.key)
		if err != nil || !p.isPlainField(string(key), m.skip()) {
			return false
		}
	}
	return m.state == afterLast
}

func (p *parsed) isPlainField(key string, value span) bool {
	switch key {
	case "labels", "annotations":
		return p.hasStrings(value)
	case "creationTimestamp", "deletionTimestamp":
		return p.isPlainTime(value)
	case "generation", "deletionGracePeriodSeconds":
		return p.isPlainInteger(value)
	case "generateName", "selfLink":
		return p.in[value.from] == '"'
	case "finalizers":
		return p.isArrayOf(value, func(from int) (end int) { return skipString(p.in, from) })
	case "ownerReferences":
		return p.isArrayOf(value, p.skipPlainOwner)
	default:
		return true // check has examined the fields of the header, and other fields are not decoded
	}
}

// hasStrings reports whether the value is an object whose members are strings.
func (p *parsed) hasStrings(value span) bool {
	m := membersOf(p.in, value.from)
	for m.next() {
		if p.in[m.skip().from] != '"' {
			return false
		}
	}
	return m.state == afterLast
}

func (p *parsed) isPlainTime(value span) bool {
	if p.in[value.from] != '"' || value.to-value.from != len(`"2006-01-02T15:04:05Z"`) {
		return false
	}
	_, err := time.Parse(time.RFC3339, string(p.in[value.from+1:value.to-1]))
	return err == nil
}

func (p *parsed) isPlainInteger(value span) bool {
	const digits = 18 // that are certain to fit into an int64
	for i := value.from; i < value.to; i++ {
		if p.in[i] < '0' || p.in[i] > '9' {
			return false
		}
	}
	return value.to-value.from <= digits
}

// isArrayOf reports whether the value is an array and skip accepts all its elements. skip returns the end of the
// element at a position, or -1.
func (p *parsed) isArrayOf(value span, skip func(from int) (end int)) bool {
	if p.in[value.from] != '[' {
		return false
	}
	at := skipSpace(p.in, value.from+1)
	if p.in[at] == ']' {
		return true
	}
	for {
		end := skip(at)
		if end < 0 {
			return false
		}
		if end = skipSpace(p.in, end); end >= value.to || p.in[end] != ',' {
			return end == value.to-1 // the closing bracket
		}
		at = skipSpace(p.in, end+1)
	}
}

// skipPlainOwner returns the end of the owner reference at a position, or -1 if it does not have the usual form.
func (p *parsed) skipPlainOwner(from int) (end int) {
	m := membersOf(p.in, from)
	for m.next() {
		key, err := unquote(p.in, m.key)
		first := p.in[m.skip().from]
		switch {
		case err != nil:
			return -1
		case string(key) == "controller" || string(key) == "blockOwnerDeletion":
			if first != 't' && first != 'f' {
				return -1
			}
		case first != '"':
			return -1
		}
	}
	if m.state != afterLast {
		return -1
	}
	return m.at
}

// hasLongNumber reports whether the JSON has so many consecutive digits that they may not fit into a float64. It is
// fast, because it reads only every 309th character, one of which belongs to such a number.
func hasLongNumber(in []byte) bool {
	const minDigits = 309
	for i := minDigits - 1; i < len(in); i += minDigits {
		if isDigit(in[i]) && digitsAround(in, i) >= minDigits {
			return true
		}
	}
	return false
}

func digitsAround(in []byte, i int) int {
	from, to := i, i
	for from > 0 && isDigit(in[from-1]) {
		from--
	}
	for to < len(in) && isDigit(in[to]) {
		to++
	}
	return to - from
}

// checkNumbers returns an error if the JSON contains a number that does not fit into a float64.
func checkNumbers(in []byte) error {
	for i := 0; i < len(in); i++ {
		switch c := in[i]; {
		case c == '"':
			if i = skipString(in, i) - 1; i < 0 {
				return nil // the JSON is malformed
			}
		case '0' <= c && c <= '9':
			start := i
			for i < len(in) && !endsScalar(in[i]) {
				i++
			}
			if _, err := strconv.ParseFloat(string(in[start:i]), 64); err != nil {
				return fmt.Errorf("the number %.40s is out of range", in[start:i])
			}
			i--
		}
	}
	return nil
}

// Field numbers in k8s.io/apimachinery/pkg/apis/meta/v1/generated.proto.
const (
	generationField    = 7 // of ObjectMeta
	creationField      = 8
	deletionField      = 9
	graceField         = 10
	annotationsField   = 12
	clusterNameField   = 15 // removed
	firstUnknownNumber = 18
)

// checkProtobuf returns an error if a field of an ObjectMeta cannot be decoded.
func checkProtobuf(number protowire.Number, raw, value []byte) error {
	switch {
	case number == clusterNameField || number >= firstUnknownNumber:
		return nil
	case number == generationField || number == graceField:
		if _, wireType, _ := protowire.ConsumeTag(raw); wireType != protowire.VarintType {
			return fmt.Errorf("metadata: field %d has the wire type %d", number, wireType)
		}
		return nil
	case value == nil:
		return fmt.Errorf("metadata: field %d is not length-delimited", number)
	case number == labelsField || number == annotationsField:
		entry := wire.Read(value)
		for entry.Next() {
			if entry.Value == nil && (entry.Number == keyField || entry.Number == valueField) {
				return fmt.Errorf("metadata: field %d has an entry that is not a string", number)
			}
		}
		return entry.Err()
	case number == ownerReferencesField:
		return (&metav1.OwnerReference{}).Unmarshal(value)
	case number == creationField || number == deletionField:
		return (&metav1.Time{}).Unmarshal(value)
	default:
		return nil
	}
}
