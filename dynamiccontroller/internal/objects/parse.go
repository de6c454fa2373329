package objects

import (
	"bytes"
	"cmp"
	gojson "encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const partialObjectMetadata = "PartialObjectMetadata"

var (
	errNoName = errors.New("the object has no metadata.name")

	// ErrNoKind is returned by Parse for an object without a kind if there is no default.
	ErrNoKind = errors.New("the object has no kind")
)

// Parse returns the record of an object that is encoded as JSON. The record does not retain data. If the object has
// no apiVersion or kind, as is the case for items in a list of a built-in type, Parse uses the values in typeMeta.
//
// data must be valid JSON. If it is not, either Parse or the methods that decode the record return an error.
func Parse(data []byte, projection Projection, typeMeta metav1.TypeMeta) (*Record, error) {
	var p parsed
	return p.parse(data, projection, typeMeta)
}

func (p *parsed) parse(data []byte, projection Projection, typeMeta metav1.TypeMeta) (*Record, error) {
	err := p.scan(data, typeMeta)
	switch {
	case err != nil:
		return nil, err
	case p.isEmpty(p.kind) && typeMeta.Kind == "":
		return nil, ErrNoKind
	case p.isEmpty(p.name):
		return nil, errNoName
	}
	return p.record(projection)
}

// parsed holds the positions of the fields of an object.
type parsed struct {
	in       []byte
	defaults metav1.TypeMeta // used for fields that are missing from the object
	object   span

	kind, apiVersion, metadata            span
	name, namespace, uid, resourceVersion span
	labels, ownerReferences               span
	managedFields                         span // the whole member, including the comma to remove with it

	others    uint8 // bit set of the otherFields that were found
	exponent  bool  // a number has an exponent
	irregular bool  // a field occurs twice, or an empty value must be replaced with a default
}

// scan finds the fields of an object.
func (p *parsed) scan(data []byte, typeMeta metav1.TypeMeta) error {
	*p = parsed{in: data, defaults: typeMeta}
	err := p.findFields()
	if err != nil {
		return err
	}
	if !p.irregular {
		return p.check()
	}
	if data, err = regularize(data, typeMeta); err != nil {
		return err
	}
	return p.scan(data, typeMeta)
}

// regularize removes duplicate keys from an object, and replaces null and empty values of kind and apiVersion with
// defaults. API servers do not send objects that require this.
func regularize(data []byte, typeMeta metav1.TypeMeta) ([]byte, error) {
	object := map[string]any{}
	decoder := gojson.NewDecoder(bytes.NewReader(data))
	decoder.UseNumber() // keep numbers as they are
	if err := decoder.Decode(&object); err != nil {
		return nil, err
	}
	for field, value := range map[string]string{"kind": typeMeta.Kind, "apiVersion": typeMeta.APIVersion} {
		if current, found := object[field]; found && value != "" && (current == nil || current == "") {
			object[field] = value
		}
	}
	return gojson.Marshal(object)
}

func (p *parsed) findFields() error {
	m := membersOf(p.in, 0)
	for m.next() {
		key, err := unquote(p.in, m.key)
		if err != nil {
			return err
		}
		switch string(key) {
		case "kind":
			p.setType(&p.kind, m.skip(), p.defaults.Kind)
		case "apiVersion":
			p.setType(&p.apiVersion, m.skip(), p.defaults.APIVersion)
		case "metadata":
			start := m.value
			if p.in[start] != '{' {
				m.skip()
			} else if err := p.findMetadata(&m); err != nil {
				return err
			}
			p.set(&p.metadata, span{start, m.at})
		default:
			m.skip()
		}
	}
	p.exponent = p.exponent || m.exponent
	if m.state != afterLast || skipSpace(p.in, m.at) != len(p.in) {
		return errors.New("not a JSON object")
	}
	p.object = span{skipSpace(p.in, 0), m.at}
	return nil
}

func (p *parsed) set(field *span, value span) {
	p.irregular = p.irregular || field.to != 0
	*field = value
}

func (p *parsed) setType(field *span, value span, byDefault string) {
	p.set(field, value)
	if byDefault != "" && (p.isNull(value) || string(p.in[value.from:value.to]) == `""`) {
		p.irregular = true
	}
}

func (p *parsed) isNull(s span) bool { return s.to == 0 || p.in[s.from] == 'n' }

// isEmpty reports whether a string is absent or empty.
func (p *parsed) isEmpty(s span) bool { return s.to-s.from <= len(`""`) }

// findMetadata finds the fields of the metadata, which is the object's current member.
func (p *parsed) findMetadata(object *members[[]byte]) error {
	m := membersOf(p.in, object.value)
	kept := false // whether a member before the current one is kept
	for separator := m.at; m.next(); separator = m.at {
		key, err := unquote(p.in, m.key)
		if err != nil {
			return err
		}
		switch string(key) {
		case "name":
			p.set(&p.name, m.skip())
		case "namespace":
			p.set(&p.namespace, m.skip())
		case "uid":
			p.set(&p.uid, m.skip())
		case "resourceVersion":
			p.set(&p.resourceVersion, m.skip())
		case "labels":
			p.set(&p.labels, m.skip())
		case "ownerReferences":
			p.set(&p.ownerReferences, m.skip())
		case "managedFields":
			m.skip()
			p.set(&p.managedFields, p.memberWithComma(m, separator, kept))
			continue
		default:
			p.setOther(key)
			m.skip()
		}
		kept = true
	}
	p.exponent = p.exponent || m.exponent
	if m.state != afterLast {
		return errors.New("metadata is not a JSON object")
	}
	object.endAt(m.at)
	return nil
}

// memberWithComma returns the span of the current member, including the comma that must be removed with it. The member
// ends at m.at.
func (p *parsed) memberWithComma(m members[[]byte], separator int, kept bool) span {
	if kept {
		return span{separator, m.at}
	}
	if next := skipSpace(p.in, m.at); next < len(p.in) && p.in[next] == ',' {
		return span{m.key.from, next + 1}
	}
	return span{m.key.from, m.at}
}

// otherFields are the fields of the metadata that are used only when decoding.
var otherFields = [...]string{
	"annotations", "creationTimestamp", "deletionGracePeriodSeconds", "deletionTimestamp", "finalizers", "generateName",
	"generation", "selfLink",
}

// setOther records a field of the metadata that is used only when decoding. It detects duplicate fields, which decoding
// into a Go struct would merge.
func (p *parsed) setOther(key []byte) {
	for i, field := range otherFields {
		if string(key) == field {
			p.irregular = p.irregular || p.others&(1<<i) != 0
			p.others |= 1 << i
		}
	}
}

// check returns an error if a field that the record needs has the wrong type. It treats null fields as absent.
func (p *parsed) check() error {
	if p.isNull(p.metadata) {
		p.metadata = span{}
	} else if p.in[p.metadata.from] != '{' {
		return errors.New("metadata is not an object")
	}
	return cmp.Or(
		p.checkString(&p.kind, "kind"), p.checkString(&p.apiVersion, "apiVersion"),
		p.checkString(&p.name, "metadata.name"), p.checkString(&p.namespace, "metadata.namespace"),
		p.checkString(&p.uid, "metadata.uid"), p.checkString(&p.resourceVersion, "metadata.resourceVersion"),
	)
}

func (p *parsed) checkString(field *span, name string) error {
	switch {
	case p.isNull(*field):
		*field = span{}
	case p.in[field.from] != '"':
		return fmt.Errorf("%s is not a string", name)
	}
	return nil
}

// record returns the record of the object.
func (p *parsed) record(projection Projection) (*Record, error) {
	r := &Record{projection: projection}
	if err := p.writeHeader(r); err != nil {
		return nil, err
	}
	if projection != Keys {
		if err := p.checkContent(projection); err != nil {
			return nil, err
		}
		if len(p.in) > math.MaxUint32/2 {
			return nil, fmt.Errorf("the object is too large: %d bytes", len(p.in))
		}
		p.writeData(r)
	}
	return r, nil
}

func (p *parsed) writeHeader(r *Record) error {
	var values [4][]byte
	for i, field := range [...]span{p.namespace, p.name, p.uid, p.resourceVersion} {
		if field.to == 0 {
			continue
		}
		value, err := unquote(p.in, field)
		if err != nil {
			return err
		}
		values[i] = value
	}
	if err := checkKey(values[0], values[1]); err != nil {
		return err
	}
	r.setHeader(values[0], values[1], values[2], values[3])
	return nil
}

// writeData sets the data of the record: the object without managedFields, or only its metadata.
func (p *parsed) writeData(r *Record) {
	var buffer [256]byte
	head, body, tail := append(buffer[:0], '{'), span{p.object.from + 1, p.object.to}, ""
	whole := r.projection >= Full
	if whole && p.kind.to == 0 || !whole && !p.isPartial() {
		head, r.kind = p.appendMember(head, "kind", p.kind, p.defaults.Kind)
	}
	if whole && p.apiVersion.to == 0 || !whole && !p.isPartial() {
		head, r.apiVersion = p.appendMember(head, "apiVersion", p.apiVersion, p.defaults.APIVersion)
	}
	if !whole {
		head, body, tail = append(head, `"metadata":`...), p.metadata, "}"
	}
	cut := p.managedFields
	if r.projection == Complete || cut.to == 0 {
		cut = span{body.to, body.to}
	}

	var data strings.Builder
	data.Grow(len(head) + body.to - body.from - (cut.to - cut.from) + len(tail))
	data.Write(head)
	data.Write(p.in[body.from:cut.from])
	data.Write(p.in[cut.to:body.to])
	data.WriteString(tail)
	r.data = data.String()

	for _, f := range [...]struct {
		position *uint32
		value    span
	}{
		{&r.kind, p.kind}, {&r.apiVersion, p.apiVersion},
		{&r.metadata, p.metadata}, {&r.labels, p.labels}, {&r.ownerReferences, p.ownerReferences},
	} {
		if !p.isNull(f.value) && f.value.from >= body.from && f.value.to <= body.to {
			*f.position = uint32(f.value.from - body.from + len(head))
			if f.value.from >= cut.to {
				*f.position -= uint32(cut.to - cut.from)
			}
		}
	}
}

// isPartial reports whether the object is a PartialObjectMetadata, whose real kind is unknown.
func (p *parsed) isPartial() bool {
	if p.kind.to == 0 {
		return p.defaults.Kind == partialObjectMetadata
	}
	return string(p.in[p.kind.from+1:p.kind.to-1]) == partialObjectMetadata
}

// appendMember appends a member and a comma, unless the value is empty. It returns the position of the value, or 0.
func (p *parsed) appendMember(to []byte, key string, value span, byDefault string) ([]byte, uint32) {
	raw := p.in[value.from:value.to]
	if len(raw) == 0 {
		if byDefault == "" {
			return to, 0
		}
		raw, _ = gojson.Marshal(byDefault)
	}
	to = append(to, '"')
	to = append(to, key...)
	to = append(to, `":`...)
	position := len(to)
	to = append(to, raw...)
	return append(to, ','), uint32(position)
}
