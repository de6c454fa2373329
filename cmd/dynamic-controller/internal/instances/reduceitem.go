package instances

import (
	"bytes"
	"encoding/json"
	"errors"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utiljson "k8s.io/apimachinery/pkg/util/json"
)

// ReduceItem reduces an item of a list of children to the metadata that is needed to delete children. Kubernetes does
// not limit the total size of labels, finalizers and owner references, so ReduceItem keeps only those that identify a
// child, and the first finalizers. It does not hold the others in memory.
func ReduceItem(item []byte) []byte {
	var object struct {
		Metadata itemMetadata `json:"metadata"`
	}
	if utiljson.Unmarshal(item, &object) != nil {
		return item
	}
	reduced, err := json.Marshal(object)
	if err != nil {
		return item
	}
	return reduced
}

type itemMetadata struct {
	Namespace                  string          `json:"namespace,omitempty"`
	Name                       string          `json:"name,omitempty"`
	UID                        string          `json:"uid,omitempty"`
	ResourceVersion            string          `json:"resourceVersion,omitempty"`
	DeletionTimestamp          json.RawMessage `json:"deletionTimestamp,omitempty"`
	DeletionGracePeriodSeconds json.RawMessage `json:"deletionGracePeriodSeconds,omitempty"`
	Labels                     itemLabels      `json:"labels,omitempty"`
	Annotations                itemAnnotations `json:"annotations,omitempty"`
	Finalizers                 itemFinalizers  `json:"finalizers,omitempty"`
	OwnerReferences            itemControllers `json:"ownerReferences,omitempty"`
}

type itemLabels map[string]string

// UnmarshalJSON implements [json.Unmarshaler].
func (l *itemLabels) UnmarshalJSON(text []byte) (err error) {
	*l, err = keptEntries(text, map[string]int{parentLabel: maxMarkBytes})
	return err
}

type itemAnnotations map[string]string

// UnmarshalJSON implements [json.Unmarshaler].
func (a *itemAnnotations) UnmarshalJSON(text []byte) (err error) {
	*a, err = keptEntries(text, map[string]int{
		parentLabel: 2 * maxMarkBytes, appliedAnnotation: maxMarkBytes, selfAnnotation: maxMarkBytes,
		resourceAnnotation: maxMarkBytes, stageAnnotation: maxMarkBytes, retainedAnnotation: maxMarkBytes,
		restoredAnnotation: maxMarkBytes,
	})
	return err
}

// keptEntries decodes the entries of an object of strings whose keys are in limits. The limits are the maximum lengths
// of the values.
func keptEntries(text []byte, limits map[string]int) (map[string]string, error) {
	kept := map[string]string{}
	decoder := json.NewDecoder(bytes.NewReader(text))
	if _, err := decoder.Token(); err != nil {
		return nil, err
	}
	for decoder.More() {
		key, keyErr := decoder.Token()
		value, valueErr := decoder.Token()
		if err := errors.Join(keyErr, valueErr); err != nil {
			return nil, err
		}
		name, _ := key.(string)
		content, _ := value.(string)
		if limit, has := limits[name]; has {
			keepShort(kept, name, content, limit)
		}
	}
	return kept, nil
}

type itemFinalizers []string

// UnmarshalJSON implements [json.Unmarshaler].
func (f *itemFinalizers) UnmarshalJSON(text []byte) error {
	const maxKept = 10
	return eachElement(text, func(decoder *json.Decoder) error {
		var finalizer string
		err := decoder.Decode(&finalizer)
		if len(*f) < maxKept && len(finalizer) <= maxMarkBytes {
			*f = append(*f, finalizer)
		}
		return err
	})
}

// itemControllers contains the reference to the controller.
type itemControllers []metav1.OwnerReference

// UnmarshalJSON implements [json.Unmarshaler].
func (c *itemControllers) UnmarshalJSON(text []byte) error {
	return eachElement(text, func(decoder *json.Decoder) error {
		var owner metav1.OwnerReference
		err := decoder.Decode(&owner)
		if owner.Controller != nil && *owner.Controller {
			*c = append(*c, shortController(owner))
		}
		return err
	})
}

// eachElement calls f for each element of a list.
func eachElement(text []byte, f func(*json.Decoder) error) error {
	decoder := json.NewDecoder(bytes.NewReader(text))
	if _, err := decoder.Token(); err != nil {
		return err
	}
	for decoder.More() {
		if err := f(decoder); err != nil {
			return err
		}
	}
	return nil
}
