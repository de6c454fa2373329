package blueprint

import (
	_ "embed" // the manifest
	"fmt"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"
)

//go:embed crd.yaml
var manifest []byte

// Manifest returns a new copy of the CustomResourceDefinition of Blueprints.
func Manifest() (*apiextensionsv1.CustomResourceDefinition, error) {
	var crd apiextensionsv1.CustomResourceDefinition
	if err := yaml.UnmarshalStrict(manifest, &crd); err != nil {
		return nil, fmt.Errorf("read the manifest of Blueprints: %w", err)
	}
	return &crd, nil
}
