package children

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/dynamic"

	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/handlers/children/internal/decide"
	"github.com/dynamic-controller/engine/handlers/children/internal/inventory"
	"github.com/dynamic-controller/engine/handlers/internal/live"
)

// maxNameLength leaves room for suffixes in field manager names, which can have 128 characters.
const maxNameLength = 100

// Config configures a [Reconciler]. Client, Mapper, Name and Kinds are required.
type Config struct {
	// Client is used for writes, and for reads that must not be outdated.
	Client dynamic.Interface
	// Mapper finds the resource and the scope of a kind. If it has no mapping for a kind, children are listed with the
	// resource in the parent's inventory. They are considered gone only if the API server does not serve that resource,
	// and the mapper's error is a NoMatch error. If the error wraps client-go's discovery.ErrGroupDiscoveryFailed, like
	// those of restmapper.Mapper while the discovery of a group fails, the children in this group fail. The others are
	// applied, but nothing is pruned or cleaned up, because the kind can exist.
	// If it has a method Verbs like that of restmapper.Mapper, children of kinds that lack verbs are never created.
	Mapper meta.RESTMapper
	// Name is a domain, such as "platform.example.com". It is the field manager of children and the prefix of labels,
	// annotations and finalizers. Children have the label <name>/parent and the annotations <name>/applied, <name>/parent,
	// <name>/stage, <name>/self, <name>/retained-by, <name>/adopted and <name>/recreated. Users can set <name>/restored on
	// them. With LabelBuckets, children also have the label <name>/bucket. Parents have the annotations <name>/inventory
	// and <name>/witness and the finalizer <name>/children. Two controllers with the same parents need different names.
	Name string
	// Cache is used to read children. By default, all children are read from the API server, with one request per child
	// and type.
	Cache Cache
	// Reserve is called before the metadata of a child that a list has found is kept until Reconcile returns. If it
	// returns an error, Reconcile fails. It can limit the memory of concurrent calls. Optional.
	Reserve func(ctx context.Context, child *unstructured.Unstructured) error
	// Kinds lists all kinds of children, including those of earlier versions of the controller: only children of these
	// kinds are created, pruned and cleaned up. Anyone who can update a parent can change its inventory, so kinds are not
	// taken from there. Entries of other kinds stay in the inventory, so that a version of the controller that lists these
	// kinds can prune their children. Such entries cost no requests. When the parent is deleted, Kubernetes deletes
	// children of such kinds because of their owner references. If they have none, because they are in other namespaces
	// or cluster-scoped, Reconcile returns ErrCrossNamespaceNotListed while the parent exists. Keep a kind until no
	// parent has such children. A child with another kind is an error. An empty list that is not nil means that parents
	// have no children.
	Kinds []Kind
	// Namespaces restricts the namespaces in which children are found. A list across namespaces is replaced with one list
	// per namespace, so permissions in these namespaces suffice. Cluster-scoped children are listed as usual. A desired
	// child in another namespace is an error, unless it is retained. By default, children can be in all namespaces.
	Namespaces []string
	// LabelBuckets labels each child with the bucket of its parent's type, so that the watches of children can be narrowed
	// to shards; see the section on shards in the package documentation. When it is set or unset, each child is written
	// once.
	LabelBuckets bool
	// MaxConcurrentApplies limits how many children of a parent are applied at the same time. In addition, their total
	// size is limited to 1 MiB, and all Reconcilers of the process together apply at most
	// [DefaultMaxConcurrentApplies] children more than Reconcile has concurrent callers. Defaults to
	// [DefaultMaxConcurrentApplies].
	MaxConcurrentApplies int
	// Memory records what the Reconciler has written. Reconcilers that share it complete the cleanup of each other's
	// parents, for example if one replaces the other. Defaults to a Memory of its own.
	Memory *Memory
	// RecordDecision is called after each decision about a desired child that needed requests, with the decision as JSON
	// in one line: the desired child, what was known about it, the operations and their answers. It serves to examine a
	// case later; see CONTRIBUTING.md. The values and annotations of Secrets are replaced by hashes, and their keys and
	// labels are not. All other objects are complete, so that the records are as confidential as they are. Each decision
	// then copies its objects. RecordDecision is called concurrently, must not modify the decision, and should return
	// soon, because it delays the other children. Optional.
	RecordDecision func(ctx context.Context, child dynamiccontroller.ObjectIdentifiers, decision []byte)
	// IdentityOf returns the identity that deletes the children of a parent that no longer exists; see
	// [Reconciler.Forget]. The parent has only what identifies it. Defaults to Config.Client.
	IdentityOf func(ctx context.Context, parent *unstructured.Unstructured) (Identity, error)
}

// Kind is a kind of child that the controller, or an earlier version of it, creates.
type Kind struct {
	schema.GroupKind
	// CrossNamespace allows children of this kind where an owner reference to the parent has no effect: in another
	// namespace, or at cluster scope. The Reconciler finds such children by listing the kind in all namespaces.
	// CrossNamespace has no effect for cluster-scoped parents, which can own children in any namespace.
	CrossNamespace bool
}

// Reconciler reconciles the children of parents. The package documentation describes what it writes.
//
// It is safe for concurrent use with different parents. The engine never calls a handler concurrently for the same
// parent. To save requests, a Reconciler caches what it has applied. The cache of a parent is dropped when
// [Reconciler.Forget] is called, when the parent's children have been cleaned up, when etcd was restored from a backup
// (see [dynamiccontroller.HistoryOf]), and at the end of each run.
type Reconciler struct{ *settings }

// settings are what the calls of a Reconciler have in common.
type settings struct {
	config Config
	names  decide.Names
	kinds  map[schema.GroupKind]bool // maps the kinds in Config.Kinds to CrossNamespace
	memory *Memory
}

// New returns a Reconciler. It does not connect to the API server. The error lists all invalid fields of config.
func New(config Config) (*Reconciler, error) {
	var errs []error
	if config.Client == nil {
		errs = append(errs, errors.New("children: Config.Client: must not be nil"))
	}
	if config.Mapper == nil {
		errs = append(errs, errors.New("children: Config.Mapper: must not be nil"))
	}
	for _, problem := range validation.IsDNS1123Subdomain(config.Name) {
		errs = append(errs, fmt.Errorf("children: Config.Name %q: %s", config.Name, problem))
	}
	if len(config.Name) > maxNameLength {
		errs = append(errs, fmt.Errorf("children: Config.Name %q: must have at most %d characters",
			config.Name, maxNameLength))
	}
	if config.Kinds == nil {
		errs = append(errs, errors.New("children: Config.Kinds: must not be nil"))
	}
	if config.MaxConcurrentApplies < 0 {
		errs = append(errs, fmt.Errorf("children: Config.MaxConcurrentApplies %d: must not be negative",
			config.MaxConcurrentApplies))
	}
	config.MaxConcurrentApplies = cmp.Or(config.MaxConcurrentApplies, DefaultMaxConcurrentApplies)
	kinds := make(map[schema.GroupKind]bool, len(config.Kinds))
	for i, kind := range config.Kinds {
		if kind.Kind == "" {
			errs = append(errs, fmt.Errorf("children: Config.Kinds[%d] %q: must have a kind", i, kind.GroupKind))
		}
		kinds[kind.GroupKind] = kinds[kind.GroupKind] || kind.CrossNamespace
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	return &Reconciler{&settings{
		config: config, names: decide.Names(config.Name), kinds: kinds, memory: cmp.Or(config.Memory, &Memory{}),
	}}, nil
}

// Recorded returns a function that reports whether a parent's inventory contains a namespace for a kind of children.
// The function always returns true for the parent's own namespace, and for cluster-scoped objects, whose namespace is
// empty.
func (r *Reconciler) Recorded(parent metav1.Object) func(kind schema.GroupKind, namespace string) bool {
	recorded := sync.OnceValue(func() inventory.Inventory {
		return inventory.Parse(parent.GetAnnotations()[r.names.Inventory()])
	})
	return func(kind schema.GroupKind, namespace string) bool {
		return inventory.Entry{}.Covers(parent, namespace) || recorded().EntryOf(kind).Covers(parent, namespace)
	}
}

// drop drops the cache of a parent.
func (s *settings) drop(id dynamiccontroller.ObjectIdentifiers) {
	for _, cache := range s.memory.caches.All() {
		cache.parents.Delete(id)
	}
}

func (s *settings) parents(id dynamiccontroller.ObjectIdentifiers) dynamic.ResourceInterface {
	return live.Resource(s.config.Client, id.GVR, id.Namespace())
}

// isListed reports whether a kind is in Config.Kinds.
func (s *settings) isListed(kind schema.GroupKind) bool { _, listed := s.kinds[kind]; return listed }
