package platform

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/go-logr/logr"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/cache"

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

// Label is what a CustomResourceDefinition carries, with the value "true", to have its type served.
const Label = "platform.example.com/serve"

var definitions = apiextensionsv1.SchemeGroupVersion.WithResource("customresourcedefinitions")

// Engine is what the platform needs of a [dynamiccontroller.DynamicController].
type Engine interface {
	StartServingGVK(ctx context.Context, gvr schema.GroupVersionResource, handler dynamiccontroller.Handler, opts ...dynamiccontroller.ServeOption) error
	StopServiceGVK(ctx context.Context, gvr schema.GroupVersionResource) error
	Lister(gvr schema.GroupVersionResource) (cache.GenericLister, error)
}

// Serve makes the engine serve the labelled types from its run on. The objects' status is written with client.
func Serve(ctx context.Context, log logr.Logger, engine Engine, client dynamic.Interface) error {
	p := &platform{log: log, engine: engine, client: client, types: map[string]typeState{}}
	return engine.StartServingGVK(ctx, definitions, p.reconcile,
		dynamiccontroller.WithLabelSelector(labels.SelectorFromSet(labels.Set{Label: "true"})),
		dynamiccontroller.WithTransform(slim))
}

type platform struct {
	log    logr.Logger
	engine Engine
	client dynamic.Interface

	mu    sync.Mutex // guards types
	types map[string]typeState
}

// typeState is how a definition stands: what of it is served, or why nothing is.
type typeState struct {
	gvr     schema.GroupVersionResource // empty while nothing is served
	status  statusRules
	problem string
}

// reconcile makes what is served of a definition what it asks for. It is not called twice at once for a definition.
func (p *platform) reconcile(ctx context.Context, id dynamiccontroller.ObjectIdentifiers) error {
	log := p.log.WithValues(keyCRD, id.Name())
	have := p.state(id.Name())
	want, wait, err := p.wanted(id.Name())
	if err != nil || wait || want == have {
		return err
	}
	if have.gvr != want.gvr && !have.gvr.Empty() {
		began := time.Now()
		// It is not served any more, also when the stop does not see the end of it. The next attempt waits for that again.
		p.setState(id.Name(), typeState{gvr: have.gvr, problem: "it is being released"})
		if err := p.engine.StopServiceGVK(ctx, have.gvr); err != nil {
			return err
		}
		p.setState(id.Name(), typeState{})
		log.Info("type released", keyGVR, nameOf(have.gvr), keyTook, time.Since(began).String())
	}
	if !want.gvr.Empty() {
		if err := p.serve(ctx, want); err != nil {
			return err
		}
	}
	p.setState(id.Name(), want)
	if want.problem != "" {
		log.Error(nil, "type cannot be served", keyProblem, want.problem)
	}
	return nil
}

// wanted is what the definition asks for. It is too early to tell while the definition is not established.
func (p *platform) wanted(name string) (want typeState, wait bool, err error) {
	lister, err := p.engine.Lister(definitions)
	if err != nil {
		return typeState{}, false, err
	}
	obj, err := lister.Get(name)
	if apierrors.IsNotFound(err) {
		return typeState{}, false, nil
	}
	if err != nil {
		return typeState{}, false, err
	}
	d, ok := obj.(*definition)
	if !ok {
		return typeState{}, false, dynamiccontroller.Terminal(fmt.Errorf("%s cannot be read", name))
	}
	if !d.established {
		return typeState{}, true, nil
	}
	return d.wanted(), false, nil
}

// wanted is what the definition asks for, once it is established.
func (d *definition) wanted() typeState {
	v, found := d.chosen()
	switch {
	case !found:
		return typeState{problem: "no version of it is served"}
	case v.status.problem != "":
		return typeState{problem: v.status.problem}
	default:
		return typeState{gvr: d.gvr(v), status: v.status}
	}
}

// serve starts serving the type, or swaps its handler if it is served already.
func (p *platform) serve(ctx context.Context, t typeState) error {
	k := &keeper{client: p.client.Resource(t.gvr), engine: p.engine, gvr: t.gvr, rules: t.status}
	return p.engine.StartServingGVK(ctx, t.gvr, k.reconcile,
		dynamiccontroller.WithTransform(keepStatus),
		dynamiccontroller.WithReconcileTimeout(writeTimeout))
}

func (p *platform) state(name string) typeState {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.types[name]
}

func (p *platform) setState(name string, t typeState) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if t == (typeState{}) {
		delete(p.types, name)
		return
	}
	p.types[name] = t
}

// nameOf writes a GVR as kubectl takes it. A type that users define always has a group.
func nameOf(gvr schema.GroupVersionResource) string {
	return gvr.Resource + "." + gvr.Version + "." + gvr.Group
}
