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

// directories are the directories that a scenario uses.
type directories struct {
	examples string // contains a directory for each example
	binaries string // contains a binary for each example
}

// environment is the state of a running scenario.
type environment struct {
	directories
	kubeconfig string
	client     dynamic.Interface
	mapper     *restmapper.Mapper
	processes  map[string]*process
	applied    []*unstructured.Unstructured

	mu  sync.Mutex // guards out
	out io.Writer
}

const (
	// stepTimeout is generous: a step takes at most a second, and a leader change takes a few seconds.
	stepTimeout  = 40 * time.Second
	pollInterval = 5 * time.Millisecond
)

// run runs a scenario. Afterwards, it stops all processes and deletes all applied objects.
func run(
	ctx context.Context, out io.Writer, c *cluster.Cluster, dirs directories, scenario []step,
) (err error) {
	s := &environment{directories: dirs, kubeconfig: c.Kubeconfig(), processes: map[string]*process{}, out: out}
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

	for _, step := range scenario {
		if err := step(ctx, s); err != nil {
			return err
		}
	}
	return nil
}

// printf prints a line.
func (s *environment) printf(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, _ = fmt.Fprintf(s.out, format+"\n", args...)
}

// clear stops all processes and deletes the applied objects in reverse order.
func (s *environment) clear(ctx context.Context) error {
	for _, p := range s.processes {
		p.stop()
	}
	var errs []error
	for _, obj := range slices.Backward(slices.Clone(s.applied)) { // delete modifies applied
		if err := s.delete(ctx, obj); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// read reads the objects in a manifest of an example.
func (s *environment) read(file string) (objects []*unstructured.Unstructured, err error) {
	f, err := os.Open(filepath.Join(s.examples, file))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	for documents := yaml.NewYAMLToJSONDecoder(f); ; {
		obj := &unstructured.Unstructured{}
		err := documents.Decode(&obj.Object)
		if errors.Is(err, io.EOF) {
			return objects, nil
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		objects = append(objects, obj)
	}
}

// resource returns the client for an object. It waits until the mapper has found the kind, which may only just have
// been defined.
func (s *environment) resource(ctx context.Context, obj *unstructured.Unstructured) (dynamic.ResourceInterface, error) {
	ctx, cancel := context.WithTimeout(ctx, stepTimeout)
	defer cancel()
	gvk := obj.GroupVersionKind()
	mapping, err := s.mapper.WaitForMapping(ctx, gvk.GroupKind(), gvk.Version)
	if err != nil {
		return nil, err
	}
	return s.client.Resource(mapping.Resource).Namespace(obj.GetNamespace()), nil
}

// apply applies an object. It retries until the API server serves the type, which can take a few milliseconds after the
// type is established.
func (s *environment) apply(ctx context.Context, obj *unstructured.Unstructured) error {
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

// delete deletes an object and waits until it no longer exists. Deleting a CustomResourceDefinition deletes all objects
// of the type.
func (s *environment) delete(ctx context.Context, obj *unstructured.Unstructured) error {
	resource, err := s.resource(ctx, obj)
	if err != nil {
		return err
	}
	background := metav1.DeletePropagationBackground // as kubectl does; for Jobs, the API server has another default
	err = resource.Delete(ctx, obj.GetName(), metav1.DeleteOptions{PropagationPolicy: &background})
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
	return a.GroupVersionKind() == b.GroupVersionKind() &&
		a.GetNamespace() == b.GetNamespace() && a.GetName() == b.GetName()
}

func eventually(ctx context.Context, condition wait.ConditionWithContextFunc) error {
	return wait.PollUntilContextTimeout(ctx, pollInterval, stepTimeout, true, condition)
}
