package instances

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/pem"
	"fmt"
	"math/big"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
	"github.com/dynamic-controller/engine/handlers/children"
)

// kept returns the fields that a child keeps.
func kept(rendered blueprint.Rendered) (fields []children.KeptField) {
	for _, field := range rendered.KeepExisting {
		fields = append(fields, children.KeptField{Path: field.Path, Reason: field.Reason})
	}
	return fields
}

// generate adds the generated values to a Secret. They are new in each reconcile: the API server stores those of the
// first one, and children.Child.KeepExisting keeps them.
func generate(secret *unstructured.Unstructured, keys []blueprint.Generated) error {
	for _, key := range keys {
		value, err := generatedValue(key)
		if err != nil {
			return fmt.Errorf("generate %s: %w", key.Key, err)
		}
		encoded := base64.StdEncoding.EncodeToString(value)
		if err := unstructured.SetNestedField(secret.Object, encoded, "data", key.Key); err != nil {
			return fmt.Errorf("generate %s: %w", key.Key, err)
		}
	}
	return nil
}

const alphanumeric = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"

// generatedValue returns a random value. The schema of Blueprints requires enough characters for 95 bits of entropy.
func generatedValue(key blueprint.Generated) ([]byte, error) {
	length := key.Length
	if length == 0 {
		length = 32
	}
	switch key.Format {
	case blueprint.PrivateKey:
		private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			return nil, err
		}
		der, err := x509.MarshalPKCS8PrivateKey(private)
		if err != nil {
			return nil, err
		}
		return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), nil
	case blueprint.Hex:
		random := make([]byte, (length+1)/2)
		if _, err := rand.Read(random); err != nil {
			return nil, err
		}
		return []byte(hex.EncodeToString(random)[:length]), nil
	}
	text := make([]byte, length)
	for i := range text {
		n, err := rand.Int(rand.Reader, big.NewInt(int64(len(alphanumeric))))
		if err != nil {
			return nil, err
		}
		text[i] = alphanumeric[n.Int64()]
	}
	return text, nil
}
