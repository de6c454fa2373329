package main

import (
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/platform"
)

const (
	flagNamespace          = "namespace"
	flagMaxBlueprintMemory = "max-blueprint-memory"
)

// serviceAccountNamespace is where a Pod finds its namespace.
const serviceAccountNamespace = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"

// platformOptions holds the platform's own flags.
type platformOptions struct {
	platform.Options
	maxBlueprintMemory string
}

func (o *platformOptions) addFlags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&o.Namespace, flagNamespace, "",
		"the platform's own `NAMESPACE` (default: $POD_NAMESPACE, else that of the Pod's service account, else kube-system)")
	f.StringSliceVar(&o.AllowChildKinds, blueprint.AllowChildKindsFlag, nil,
		"restricted `KINDS` that templates can create, such as Role.rbac.authorization.k8s.io or Secret/kubernetes.io/service-account-token")
	f.StringSliceVar(&o.AllowChildNamespaces, blueprint.AllowChildNamespacesFlag, nil,
		"protected `NAMESPACES` in which templates can create objects, as names or patterns (kube-* and the platform's own namespace are protected)")
	f.StringVar(&o.maxBlueprintMemory, flagMaxBlueprintMemory, "",
		"maximum estimated memory of all Blueprints together, as a `QUANTITY` such as 64Mi; Blueprints beyond it are refused; 0 for no limit "+
			"(default: a quarter of the memory limit, or 256Mi if there is none)")
}

// complete fills in the defaults that depend on where the process runs.
func (o *platformOptions) complete() {
	if o.Namespace == "" {
		o.Namespace = ownNamespace(serviceAccountNamespace)
	}
}

// ownNamespace returns the namespace of the Pod that this process runs in, or kube-system outside of a Pod.
func ownNamespace(file string) string {
	if namespace := os.Getenv("POD_NAMESPACE"); namespace != "" {
		return namespace
	}
	if data, err := os.ReadFile(file); err == nil {
		if namespace := strings.TrimSpace(string(data)); namespace != "" {
			return namespace
		}
	}
	return metav1.NamespaceSystem
}

// limitBlueprints sets the memory budget of Blueprints. The memory limit of the process is 0 if there is none.
func (o *platformOptions) limitBlueprints(memoryLimit int64) error {
	const share, withoutLimit = 4, 256 << 20
	switch {
	case o.maxBlueprintMemory != "":
		quantity, err := resource.ParseQuantity(o.maxBlueprintMemory)
		if err != nil {
			return fmt.Errorf("--%s %q: %w", flagMaxBlueprintMemory, o.maxBlueprintMemory, err)
		}
		o.MaxBlueprintMemory = quantity.Value()
	case memoryLimit > 0:
		o.MaxBlueprintMemory = memoryLimit / share
	default:
		o.MaxBlueprintMemory = withoutLimit
	}
	return nil
}
