package objects

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// unusable takes the place of the object in a record whose object cannot be used.
type unusable struct{ reason error }

func (u unusable) GetObjectKind() schema.ObjectKind { return schema.EmptyObjectKind }
func (u unusable) DeepCopyObject() runtime.Object   { return u }

// noKey is the first character of the key of a record whose key is unknown. No valid name contains it. It is followed
// by the UID or a number, so that no two such keys are equal.
const (
	noKey    = "\x00"
	uidKey   = noKey + "u"
	numbered = noKey + "n"
)

// An object with a longer name, namespace, UID or resourceVersion is valid, but its unusable record lacks this field,
// so that unusable objects and their reasons use little memory.
const (
	maxField  = 1024
	maxReason = 256
)

// unidentified numbers the records that have neither a key nor a UID, so that a store does not confuse them.
var unidentified atomic.Uint64

// newUnusable returns the record of an object that cannot be used for the given reason. If hasKey is false, the
// namespace and the name are unknown.
func newUnusable(reason error, hasKey bool, namespace, name, uid, resourceVersion []byte) *Record {
	if message := reason.Error(); len(message) > maxReason {
		reason = errors.New(strings.ToValidUTF8(strings.Clone(message[:maxReason]), "") + "...")
	}
	r := &Record{opaque: unusable{reason}, encoded: true}
	if len(uid) > maxField {
		uid = nil
	}
	if len(resourceVersion) > maxField {
		resourceVersion = nil
	}
	switch {
	case hasKey && len(namespace) <= maxField && len(name) <= maxField:
	case len(uid) > 0:
		namespace, name = nil, append([]byte(uidKey), uid...)
	default:
		namespace, name = nil, fmt.Appendf(nil, "%s%d", numbered, unidentified.Add(1))
	}
	r.setHeader(namespace, name, uid, resourceVersion)
	return r
}

// Unusable returns the record of a decoded object that Encode rejects, with the error from Encode as the reason.
func Unusable(obj any, reason error) *Record {
	accessor, err := meta.Accessor(obj)
	if err != nil {
		return newUnusable(reason, false, nil, nil, nil, nil)
	}
	name, namespace := accessor.GetName(), accessor.GetNamespace()
	u, ok := obj.(*unstructured.Unstructured)
	hasKey := checkKey(namespace, name) == nil && (!ok || hasReadableNamespace(u))
	return newUnusable(reason, hasKey, []byte(namespace), []byte(name),
		[]byte(accessor.GetUID()), []byte(accessor.GetResourceVersion()))
}

var errNamespace = errors.New("metadata.namespace is not a string")

// hasReadableNamespace reports whether the namespace is a string, null or absent. GetNamespace returns "" for a number.
func hasReadableNamespace(u *unstructured.Unstructured) bool {
	metadata, _ := u.Object["metadata"].(map[string]any)
	_, ok := metadata["namespace"].(string)
	return ok || metadata["namespace"] == nil
}

// Unusable returns the reason why the object cannot be used, or nil if it can be used. The record of an unusable object
// has only a header. It must not be stored.
func (r *Record) Unusable() error {
	if u, ok := r.opaque.(unusable); ok {
		return u.reason
	}
	return nil
}

// Identity returns the key and the UID of an object that may be unusable. Both are empty if they are unknown.
func (r *Record) Identity() (key string, uid types.UID) {
	if key = r.Key(); strings.HasPrefix(key, noKey) {
		key = ""
	}
	return key, r.GetUID()
}

// UIDKey returns the key of the record of an unusable object of which only the UID is known.
func UIDKey(uid types.UID) string { return uidKey + string(uid) }

// checkKey returns an error if an object with this namespace and name could be confused with another one, or has no
// name.
func checkKey[T text](namespace, name T) error {
	switch {
	case len(name) == 0:
		return errNoName
	case hasSeparator(name):
		return fmt.Errorf("metadata.name %.64q contains a slash or a NUL", name)
	case hasSeparator(namespace):
		return fmt.Errorf("metadata.namespace %.64q contains a slash or a NUL", namespace)
	}
	return nil
}

func hasSeparator[T text](s T) bool {
	for i := range len(s) {
		if s[i] == '/' || s[i] == noKey[0] {
			return true
		}
	}
	return false
}

// ParseItem is like Parse, but returns an unusable record instead of an error; see [Record.Unusable].
func ParseItem(data []byte, projection Projection, typeMeta metav1.TypeMeta) *Record {
	var p parsed
	r, err := p.parse(data, projection, typeMeta)
	if err != nil {
		return p.unusable(err)
	}
	return r
}

// RefusedItem returns the unusable record of an object that is not valid JSON, or too deep for the readers of JSON. It
// has the fields of the header that can be read.
func RefusedItem(data []byte, reason error) *Record {
	var p parsed
	_ = p.scan(data, metav1.TypeMeta{}) // an error changes nothing
	return p.unusable(reason)
}

// unusable returns an unusable record with the fields of the header that can be read.
func (p *parsed) unusable(reason error) *Record {
	var values [4][]byte
	var readable [4]bool
	for i, field := range [...]span{p.namespace, p.name, p.uid, p.resourceVersion} {
		values[i], readable[i] = p.readString(field)
	}
	hasKey := readable[0] && readable[1] && checkKey(values[0], values[1]) == nil
	return newUnusable(reason, hasKey, values[0], values[1], values[2], values[3])
}

// readString returns the value of a field. An absent or null field is readable and empty.
func (p *parsed) readString(field span) (value []byte, readable bool) {
	if p.isNull(field) {
		return nil, true
	}
	if p.in[field.from] != '"' {
		return nil, false
	}
	value, err := unquote(p.in, field)
	return value, err == nil
}
