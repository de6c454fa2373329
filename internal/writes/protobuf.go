package writes

import (
	"bytes"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/dynamic-controller/engine/internal/wire"
)

// maxProtobuf is the maximum length of an encoded object that is parsed. The API server rejects larger objects.
const maxProtobuf = 4 << 20

// protobufObject parses a message, of which it keeps a copy until the end.
type protobufObject struct {
	content []byte
	tooLong bool
}

// protobufPrefix precedes an encoded runtime.Unknown.
const protobufPrefix = "k8s\x00"

// The numbers of fields in messages of Kubernetes.
const (
	rawInUnknown      = 2 // runtime.Unknown.Raw
	metadataInObject  = 1 // ObjectMeta of all objects
	detailsInStatus   = 5 // Status.Details
	uidInDetails      = 6 // StatusDetails.UID
	nameInMeta        = 1
	uidInMeta         = 5
	versionInMeta     = 6
	deletionInMeta    = 9
	graceInMeta       = 10 // a varint
	labelsInMeta      = 11
	finalizersInMeta  = 14
	keyInEntry        = 1
	valueInEntry      = 2
	typeMetaInUnknown = 1
	kindInTypeMeta    = 2
	statusKind        = "Status"
)

func (p *protobufObject) parse(part []byte, last bool) (o object, known bool) {
	if p.tooLong = p.tooLong || len(p.content)+len(part) > maxProtobuf; p.tooLong {
		p.content = nil
		return o, false
	}
	p.content = append(p.content, part...)
	unknown, ok := bytes.CutPrefix(p.content, []byte(protobufPrefix))
	if !last || !ok {
		return o, false
	}
	raw := fieldOf(unknown, rawInUnknown)
	if string(fieldOf(fieldOf(unknown, typeMetaInUnknown), kindInTypeMeta)) == statusKind {
		o.detailsUID = string(fieldOf(fieldOf(raw, detailsInStatus), uidInDetails))
		return o, true
	}
	for m := wire.Read(fieldOf(raw, metadataInObject)); m.Next(); {
		switch m.Number {
		case nameInMeta:
			o.name = string(m.Value)
		case uidInMeta:
			o.uid = string(m.Value)
		case versionInMeta:
			o.version = string(m.Value)
		case deletionInMeta:
			o.deleting = true
		case graceInMeta:
			o.grace = m.Raw[len(m.Raw)-1] != 0 // the last byte of a varint is zero only in the number zero
		case finalizersInMeta:
			o.finalizers = true
		case labelsInMeta:
			if o.labels == nil {
				o.labels = labels.Set{}
			}
			o.labels[string(fieldOf(m.Value, keyInEntry))] = string(fieldOf(m.Value, valueInEntry))
		}
	}
	return o, true
}

// fieldOf returns the value of the first length-delimited field with this number, or nil.
func fieldOf(message []byte, number int) []byte {
	for m := wire.Read(message); m.Next(); {
		if int(m.Number) == number {
			return m.Value
		}
	}
	return nil
}
