package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/dynamic"

	"github.com/dynamic-controller/engine/restmapper"
	"github.com/dynamic-controller/engine/test/cluster"
)

// places is where things are.
type places struct {
	examples string // with a folder an example
	binaries string // with a binary an example
}

// stage is where a story takes place.
type stage struct {
	places
	kubeconfig string
	client     dynamic.Interface
	mapper     *restmapper.Mapper
	processes  map[string]*process
	applied    []*unstructured.Unstructured

	mu  sync.Mutex // guards out
	out io.Writer
}

const (
	// patience is how long a step waits for what takes a second at the most when it works, a change of leaders some.
	patience = 40 * time.Second
	pause    = 5 * time.Millisecond
)

// tell goes through the story. After it nothing runs any more, and what was applied is gone.
func tell(ctx context.Context, out io.Writer, c *cluster.Cluster, where places, story []step) (err error) {
	s := &stage{places: where, kubeconfig: c.Kubeconfig(), processes: map[string]*process{}, out: out}
	if s.client, err = dynamic.NewForConfig(c.Config()); err != nil {
		return err
	}
	if s.mapper, err = restmapper.New(logr.Discard(), c.Config()); err != nil {
		return err
	}
	var mapping sync.WaitGroup
	mappingCtx, endMapping := context.WithCancel(context.WithoutCancel(ctx))
	mapping.Go(func() { _ = s.mapper.Run(mappingCtx) })
	defer mapping.Wait()
	defer endMapping()
	defer func() { err = errors.Join(err, s.clear(context.WithoutCancel(ctx))) }()

	for _, step := range story {
		if err := step(ctx, s); err != nil {
			return err
		}
	}
	return nil
}

// say prints a line.
func (s *stage) say(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, _ = fmt.Fprintf(s.out, format+"\n", args...)
}

// clear ends what runs and deletes what was applied, the last first.
func (s *stage) clear(ctx context.Context) error {
	for _, p := range s.processes {
		p.stop()
	}
	var errs []error
	for _, obj := range slices.Backward(slices.Clone(s.applied)) { // which delete shortens
		if err := s.delete(ctx, obj); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// read reads a manifest of an example.
func (s *stage) read(file string) (*unstructured.Unstructured, error) {
	data, err := os.ReadFile(filepath.Join(s.examples, file))
	if err != nil {
		return nil, err
	}
	obj := &unstructured.Unstructured{}
	if err := yaml.Unmarshal(data, &obj.Object); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return obj, nil
}

// resource is what the object's kind is asked for by. A kind that was just defined is waited for.
func (s *stage) resource(ctx context.Context, obj *unstructured.Unstructured) (dynamic.ResourceInterface, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	gvk := obj.GroupVersionKind()
	mapping, err := s.mapper.WaitForMapping(ctx, gvk.GroupKind(), gvk.Version)
	if err != nil {
		return nil, err
	}
	return s.client.Resource(mapping.Resource).Namespace(obj.GetNamespace()), nil
}

// apply applies the object. For some milliseconds the API server may not serve a type that it has established.
func (s *stage) apply(ctx context.Context, obj *unstructured.Unstructured) error {
	resource, err := s.resource(ctx, obj)
	if err != nil {
		return err
	}
	return eventually(ctx, func(ctx context.Context) (bool, error) {
		_, err := resource.Apply(ctx, obj.GetName(), obj, metav1.ApplyOptions{FieldManager: "show", Force: true})
		if apierrors.IsNotFound(err) {
			return false, nil
		}
		return err == nil, err
	})
}

// delete deletes the object, and returns when it is gone. A type goes with all its objects.
func (s *stage) delete(ctx context.Context, obj *unstructured.Unstructured) error {
	resource, err := s.resource(ctx, obj)
	if err != nil {
		return err
	}
	err = resource.Delete(ctx, obj.GetName(), metav1.DeleteOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	s.applied = slices.DeleteFunc(s.applied, func(a *unstructured.Unstructured) bool { return same(a, obj) })
	return eventually(ctx, func(ctx context.Context) (bool, error) {
		_, err := resource.Get(ctx, obj.GetName(), metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return true, nil
		}
		return false, err
	})
}

func same(a, b *unstructured.Unstructured) bool {
	return a.GroupVersionKind() == b.GroupVersionKind() && a.GetNamespace() == b.GetNamespace() && a.GetName() == b.GetName()
}

func eventually(ctx context.Context, seen wait.ConditionWithContextFunc) error {
	return wait.PollUntilContextTimeout(ctx, pause, patience, true, seen)
}
