package acceptance

import (
	"errors"
	"fmt"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/instances"
	"github.com/dynamic-controller/engine/dynamiccontroller"
)

// cache reads Blueprints, CustomResourceDefinitions and stored revisions from the caches of the definitions engine. The
// objects are shared and must not be modified.
type cache struct {
	engine    instances.Engine
	namespace string
}

func (c cache) blueprints() ([]runtime.Object, error) {
	lister, err := c.engine.Lister(blueprints)
	if err != nil {
		return nil, err
	}
	return lister.List(labels.Everything())
}

// blueprint returns a Blueprint, or nil if it does not exist.
func (c cache) blueprint(name string) (*blueprint.Blueprint, claim, error) {
	lister, err := c.engine.Lister(blueprints)
	if err != nil {
		return nil, claim{}, err
	}
	object, err := lister.Get(name)
	if err != nil {
		if apierrors.IsNotFound(err) {
			err = nil
		}
		return nil, claim{}, err
	}
	u, ok := object.(*unstructured.Unstructured)
	if !ok {
		return nil, claim{}, dynamiccontroller.Terminal(errors.New("the cache contains Blueprints of an unexpected Go type"))
	}
	b, err := blueprint.FromUnstructured(u)
	if err != nil {
		return nil, claim{}, dynamiccontroller.Terminal(err)
	}
	return b, claimOf(b), nil
}

// crd returns a CustomResourceDefinition, or nil if it does not exist.
func (c cache) crd(name string) (*apiextensionsv1.CustomResourceDefinition, error) {
	lister, err := c.engine.SecondaryLister(blueprints, watchCRDs(nil).Key())
	if err != nil {
		return nil, err
	}
	object, err := lister.Get(name)
	if err != nil {
		if apierrors.IsNotFound(err) {
			err = nil
		}
		return nil, err
	}
	crd, ok := object.(*apiextensionsv1.CustomResourceDefinition)
	if !ok {
		return nil, fmt.Errorf("the CustomResourceDefinition %s cannot be decoded", name)
	}
	return crd, nil
}

func (c cache) revisions(selector labels.Selector) (all []*revision, err error) {
	lister, err := c.engine.SecondaryLister(blueprints, watchRevisions(c.namespace, nil).Key())
	if err != nil {
		return nil, err
	}
	objects, err := lister.List(selector)
	for _, object := range objects {
		if r, ok := object.(*revision); ok { // malformed ControllerRevisions are cached unchanged
			all = append(all, r)
		}
	}
	return all, err
}

// history returns the stored revisions of Blueprints with the given name. It returns [dynamiccontroller.ErrNotSynced]
// until the cache contains all revisions.
func (c cache) history(name string) (h history, err error) {
	all, err := c.revisions(labels.SelectorFromSet(labels.Set{blueprintLabel: instances.LabelValue(name)}))
	for _, r := range all {
		if r.blueprint == name {
			h = append(h, r)
		}
	}
	return h, err
}

// newestRevisions returns the newest stored revision of each Blueprint, by the UID of the Blueprint.
func (c cache) newestRevisions() (map[types.UID]*revision, error) {
	all, err := c.revisions(labels.Everything())
	newest := map[types.UID]*revision{}
	for _, r := range all {
		if before := newest[r.blueprintUID]; before == nil || isNewer(r, before) {
			newest[r.blueprintUID] = r
		}
	}
	return newest, err
}

// historyProblem returns the reason why the stored revisions cannot be read. It returns "" if the cache of revisions
// has synced or is still syncing, or if Blueprints are not served yet.
func (c cache) historyProblem() string {
	t, _ := c.engine.TypeStatusOf(blueprints) // without watches if Blueprints are not served
	for _, s := range t.Secondaries {
		if s.GVR != controllerRevisions || isSyncing(s.State) || s.State == dynamiccontroller.TypeSynced {
			continue
		}
		return fmt.Sprintf("the stored revisions cannot be read: %s; the platform must be permitted to get, list, watch, "+
			"create, patch and delete controllerrevisions.apps in namespace %s", s.Message, c.namespace)
	}
	return ""
}

func isSyncing(state dynamiccontroller.TypeState) bool {
	return state == dynamiccontroller.TypeSyncing || state == dynamiccontroller.TypeStopped
}
