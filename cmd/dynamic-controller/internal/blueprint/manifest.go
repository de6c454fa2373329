package blueprint

import (
	_ "embed" // for the manifest
	"fmt"
	"sync"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"
)

// ManifestRevisionAnnotation is an annotation on the Blueprint CustomResourceDefinition. Its value is a number that
// increases with each release that changes the manifest. An older version of the platform does not replace a
// newer manifest.
const ManifestRevisionAnnotation = "platform.example.com/manifest-revision"

//go:embed crd.yaml
var manifest []byte

// Manifest returns a new copy of the Blueprint CustomResourceDefinition.
func Manifest() (*apiextensionsv1.CustomResourceDefinition, error) {
	crd, err := parsedManifest()
	return crd.DeepCopy(), err
}

// parsedManifest returns the shared Blueprint CustomResourceDefinition, which must not be changed. The manifest is
// parsed only once because each compilation of a Blueprint uses it.
var parsedManifest = sync.OnceValues(func() (*apiextensionsv1.CustomResourceDefinition, error) {
	crd := &apiextensionsv1.CustomResourceDefinition{}
	if err := yaml.UnmarshalStrict(manifest, crd); err != nil {
		return nil, fmt.Errorf("parse the Blueprint CustomResourceDefinition: %w", err)
	}
	return crd, nil
})
