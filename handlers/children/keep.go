package children

import "github.com/dynamic-controller/engine/internal/keptfields"

// WholeObject is the path of a KeptField that stands for all fields except apiVersion, kind and metadata.
const WholeObject = keptfields.WholeObject

// KeptField is a field whose existing value is kept. See [Child].KeepExisting.
type KeptField struct {
	// Path is the path of the field, such as spec.replicas. A key that contains other characters than letters, digits, -
	// and _ is in brackets and quotes, and an item of a list with keys is selected by its keys:
	//
	//	data["tls.key"]
	//	spec.template.spec.containers[name=web].image
	//	*  (WholeObject)
	Path string
	// Reason says why the field is kept, for readers of the code. It has no effect.
	Reason string
}
