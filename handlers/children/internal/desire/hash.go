package desire

import (
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"github.com/dynamic-controller/engine/handlers/children/internal/decide"
	"github.com/dynamic-controller/engine/handlers/internal/applied"
)

// hashOf returns the value of the annotation <name>/applied, and the size of the configuration. The value consists of
// two digests: one of the configuration and the identity, and one of the kinds, namespaces and names of the parent and
// the child. The second one is the same after a restore from a backup.
func hashOf(
	parent *decide.Parent, config *unstructured.Unstructured, kept []fieldpath.Path,
) (hash string, size int64, err error) {
	hashed := []any{decide.Without(config, kept).Object}
	for _, path := range kept {
		hashed = append(hashed, path.String()) // a change of a kept value causes no write
	}
	if parent.Writer != "" {
		hashed = append(hashed, parent.Writer) // a child is applied again if the identity changes
	}
	hash, size, err = applied.DigestAndSize(hashed...)
	if err != nil {
		return "", 0, err
	}
	names, err := applied.Digest(parent.Identity(), config.GetKind(), decide.NameOf(config))
	if err != nil {
		return "", 0, err
	}
	return hash + "." + names[:16], size, nil
}
