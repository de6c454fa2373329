package desire

import (
	"encoding/base64"
	"errors"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// SecretKind is the kind of core/v1 Secrets, whose keys and values must not be in messages.
var SecretKind = corev1.SchemeGroupVersion.WithKind("Secret")

// encodeStringData moves the stringData of a Secret to its data, where stringData takes precedence. The API server does
// the same when it stores a Secret, but a manager that applies stringData does not own the resulting data. Drift would
// then not be detected, and keys that are no longer applied would not be removed. Errors contain neither keys nor
// values because a template can derive both from another Secret.
func encodeStringData(secret *unstructured.Unstructured) error {
	if secret.GroupVersionKind() != SecretKind {
		return nil
	}
	if secret.Object["stringData"] == nil {
		delete(secret.Object, "stringData")
		return nil
	}
	texts, _, err := unstructured.NestedStringMap(secret.Object, "stringData")
	if err != nil {
		return errors.New("stringData: must be a map of strings")
	}
	delete(secret.Object, "stringData")
	if len(texts) == 0 {
		return nil
	}
	data, isMap := secret.Object["data"].(map[string]any)
	if !isMap && secret.Object["data"] != nil {
		return errors.New("data: must be a map of strings")
	}
	if data == nil {
		data = make(map[string]any, len(texts))
		secret.Object["data"] = data
	}
	for key, text := range texts {
		data[key] = base64.StdEncoding.EncodeToString([]byte(text))
	}
	return nil
}
