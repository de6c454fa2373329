package objects_test

import (
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/dynamic-controller/engine/dynamiccontroller/internal/objects"
)

// An object is kept as JSON, filtered by its labels and decoded when it is read.
func Example() {
	received := []byte(`{"kind":"Widget","apiVersion":"example.com/v1","metadata":{"namespace":"team-a","name":"shop",` +
		`"labels":{"tier":"web"},"managedFields":[{"manager":"kubectl"}]},"spec":{"size":3}}`)
	record, err := objects.Parse(received, objects.Full, metav1.TypeMeta{})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(record.Key(), record.Matches(labels.SelectorFromSet(labels.Set{"tier": "web"})))

	decoded, err := record.Decode(objects.Full)
	if err != nil {
		fmt.Println(err)
		return
	}
	widget := decoded.(*unstructured.Unstructured)
	fmt.Println(widget.Object["spec"], len(widget.GetManagedFields()))
	// Output:
	// team-a/shop true
	// map[size:3] 0
}
