package offline_test

import (
	"context"
	"fmt"
	"os"
	"strings"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/offline"
)

func ExampleValidate() {
	const blueprint = `apiVersion: platform.example.com/v1alpha1
kind: Blueprint
metadata: {name: shops}
spec:
  type: {group: shop.example.com, version: v1, kind: Shop, schema: {properties: {spec: {type: object}}}}
  resources:
    - id: page
      template:
        apiVersion: v1
        kind: ConfigMap
        metadata: {name: "${self.metadata.name}"}
        data: {pages: 3}
`
	err := offline.Validate(context.Background(), os.Stdout, os.Stderr, []string{"-"},
		offline.Options{Stdin: strings.NewReader(blueprint)})
	fmt.Println(err)
	// Output:
	// -:12: blueprint/shops: spec.resources[0].template.data.pages: must be a string; put it in quotes
	// problems were found
}
