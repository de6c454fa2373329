package e2e

import (
	"context"
	"flag"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	"github.com/dynamic-controller/engine/internal/testkit"
	"github.com/dynamic-controller/engine/test/cluster"
)

var (
	rounds     = flag.Int("rounds", 1, "number of rounds of random faults")
	firstRound = flag.Int("from", 0, "number of the first round")
	seedFlag   = flag.Uint64("seed", 0, "seed of the random faults; 0 chooses a random seed")
	onServer   = flag.Bool("fence-on-server", false, "let the API server reject late writes of the engine's replicas")
)

var shared = cluster.NewShared(cluster.Options{})

func TestMain(m *testing.M) {
	if spec := os.Getenv(workerEnv); spec != "" {
		os.Exit(work(spec))
	}
	_ = os.Unsetenv("TEST_KUBECONFIG") // The tests disrupt the cluster, so they must not use an external one.
	_ = flag.Set("test.parallel", "4") // The tests mostly wait. The -parallel flag overrides this.
	goleak.VerifyTestMain(shared.Main(m))
}

// timeout limits waits for conditions that normally take a few seconds.
const timeout = 60 * time.Second

// widgets is the type that a single leader serves.
var widgets = schema.GroupVersionResource{Group: "e2e.example.com", Version: "v1", Resource: "widgets"}

// defineOnce creates the CRD of widgets once for all tests.
func defineOnce(t *testing.T, config *rest.Config) {
	t.Helper()
	definition.Do(func() { errDefinition = define(config, widgets) })
	if errDefinition != nil {
		t.Fatal(errDefinition)
	}
}

var (
	definition    sync.Once
	errDefinition error
)

// define creates the CRDs of types, and waits until they are served.
func define(config *rest.Config, types ...schema.GroupVersionResource) error {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	definitions, err := apiextensions.NewForConfig(config)
	if err != nil {
		return err
	}
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return err
	}
	for _, gvr := range types {
		crd := definitionOf(gvr)
		err := testkit.Poll(ctx, func(ctx context.Context) error { // An earlier definition can still be terminating.
			_, err := definitions.ApiextensionsV1().CustomResourceDefinitions().Create(ctx, crd, metav1.CreateOptions{})
			return err
		})
		if err != nil {
			return err
		}
	}
	return testkit.Poll(ctx, func(ctx context.Context) error {
		for _, gvr := range types {
			if _, err := client.Resource(gvr).List(ctx, metav1.ListOptions{}); err != nil {
				return err
			}
		}
		return nil
	})
}

func definitionOf(gvr schema.GroupVersionResource) *apiextensionsv1.CustomResourceDefinition {
	kind := kindOf(gvr)
	return &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: gvr.GroupResource().String()},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: gvr.Group,
			Scope: apiextensionsv1.NamespaceScoped,
			Names: apiextensionsv1.CustomResourceDefinitionNames{
				Plural: gvr.Resource, Singular: strings.ToLower(kind), Kind: kind, ListKind: kind + "List",
			},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{
				Name: gvr.Version, Served: true, Storage: true,
				Subresources: &apiextensionsv1.CustomResourceSubresources{
					Status: &apiextensionsv1.CustomResourceSubresourceStatus{},
				},
				Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{
					Type: "object", XPreserveUnknownFields: ptr.To(true),
				}},
			}},
		},
	}
}

// kindOf returns the kind of a type: Widget for widgets.
func kindOf(gvr schema.GroupVersionResource) string {
	singular := strings.TrimSuffix(gvr.Resource, "s")
	return strings.ToUpper(singular[:1]) + singular[1:]
}
