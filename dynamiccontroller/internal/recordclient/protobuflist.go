package recordclient

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"

	"google.golang.org/protobuf/encoding/protowire"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/dynamic-controller/engine/dynamiccontroller/internal/objects"
)

// readProtobufList reads a protobuf-encoded list. Each item is parsed as it arrives.
func readProtobufList(
	body *bufio.Reader, projection objects.Projection, item itemFunc,
) (metav1.ListMeta, error) {
	r := &protobufList{fieldReader: fieldReader{body: body}, projection: projection, item: item}
	err := r.readUnknown()
	if err == nil && !r.hasList {
		err = r.notList()
	}
	return r.meta, unexpected(err)
}

// protobufList reads a list, which is a field of a runtime.Unknown.
type protobufList struct {
	fieldReader
	projection objects.Projection
	item       itemFunc
	typeMeta   metav1.TypeMeta
	meta       metav1.ListMeta
	hasList    bool
}

func (r *protobufList) notList() error {
	return fmt.Errorf("expected a PartialObjectMetadataList, got kind %q of %q", r.typeMeta.Kind, r.typeMeta.APIVersion)
}

func (r *protobufList) readUnknown() error {
	if _, err := r.body.Discard(len(protobufPrefix)); err != nil {
		return err
	}
	for {
		if _, err := r.body.Peek(1); err != nil {
			return ignoreEOF(err)
		}
		field, size, err := r.next()
		if err != nil {
			return err
		}
		switch field {
		case unknownTypeField:
			err = r.readTypeMeta(size)
		case unknownRawField:
			err = r.readFields(size)
		default:
			_, err = r.value(size)
		}
		if err != nil {
			return err
		}
	}
}

func (r *protobufList) readTypeMeta(size int) error {
	data, err := r.value(size)
	if err != nil {
		return err
	}
	var t runtime.TypeMeta
	if err := t.Unmarshal(data); err != nil {
		return fmt.Errorf("list type: %w", err)
	}
	r.typeMeta = metav1.TypeMeta{APIVersion: t.APIVersion, Kind: t.Kind}
	return nil
}

func ignoreEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// readFields reads the fields of the list, which is size bytes long.
func (r *protobufList) readFields(size int) error {
	if r.typeMeta.Kind != "PartialObjectMetadataList" {
		return r.notList()
	}
	r.hasList = true
	end := r.position + size
	for r.position < end {
		field, size, err := r.next()
		if err != nil {
			return err
		}
		data, err := r.value(size)
		if err != nil {
			return err
		}
		switch field {
		case listMetaField:
			if err := r.meta.Unmarshal(data); err != nil {
				return fmt.Errorf("list metadata: %w", err)
			}
		case listItemsField:
			r.item(objects.ParseProtobufItem(data, r.projection))
		}
	}
	if r.position > end {
		return errors.New("the last field is longer than the list")
	}
	return nil
}

// fieldReader reads the fields of a message, all of which must be length-delimited.
type fieldReader struct {
	body     *bufio.Reader
	position int // number of bytes that have been read
	buffer   []byte
}

// next reads the number and the size of the next field. The caller must read the value.
func (r *fieldReader) next() (field protowire.Number, size int, err error) {
	tag, err := binary.ReadUvarint(r)
	if err != nil {
		return 0, 0, err
	}
	field, wireType := protowire.DecodeTag(tag)
	if wireType != protowire.BytesType {
		return 0, 0, fmt.Errorf("field %d has the wire type %d", field, wireType)
	}
	length, err := binary.ReadUvarint(r)
	if err == nil && length > math.MaxInt/2 { // so that positions do not overflow
		err = fmt.Errorf("field %d is too large: %d bytes", field, length)
	}
	return field, int(length), err
}

// ReadByte returns the next byte. It is called by binary.ReadUvarint.
func (r *fieldReader) ReadByte() (byte, error) {
	r.position++
	return r.body.ReadByte()
}

// value reads a value of the given size. The result is valid until the next value is read.
func (r *fieldReader) value(size int) ([]byte, error) {
	if size > maxValueSize {
		return nil, errTooLarge
	}
	r.position += size
	r.buffer = slices.Grow(r.buffer[:0], size)[:size]
	_, err := io.ReadFull(r.body, r.buffer)
	return r.buffer, err
}
