package main

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	slsa "github.com/in-toto/attestation/go/predicates/provenance/v1"
	intoto "github.com/in-toto/attestation/go/v1"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/dynamic-controller/engine/install/internal/platform"
)

const (
	checksumsFile  = "SHA256SUMS"
	provenanceFile = "provenance.intoto.json"
	provenanceType = "https://slsa.dev/provenance/v1"
)

// writeProvenance writes an in-toto statement with SLSA provenance. It contains no times of the build, so that another
// build by the same builder has the same provenance.
func (b *builder) writeProvenance(modules []platform.Module, dir string) error {
	predicate, err := b.provenance(modules)
	if err != nil {
		return err
	}
	statement := &intoto.Statement{
		Type: intoto.StatementTypeUri, PredicateType: provenanceType, Predicate: predicate,
	}
	for _, a := range b.artifacts {
		statement.Subject = append(statement.Subject, &intoto.ResourceDescriptor{
			Name: a.name, Digest: map[string]string{"sha256": a.digest},
		})
	}
	statement.Subject = append(statement.Subject, &intoto.ResourceDescriptor{
		Name: b.repository, Digest: map[string]string{b.image.Algorithm: b.image.Hex},
	})
	if err := statement.Validate(); err != nil {
		return err
	}
	content, err := stableJSON(statement)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, provenanceFile), content, 0o644)
}

func (b *builder) provenance(modules []platform.Module) (*structpb.Struct, error) {
	platforms := make([]any, len(b.targets))
	for i, target := range b.targets {
		platforms[i] = target.String()
	}
	external, err := structpb.NewStruct(map[string]any{
		"version": b.version, "repository": b.repository, "platforms": platforms,
		"sourceDateEpoch": strconv.FormatInt(b.date.Unix(), 10),
	})
	if err != nil {
		return nil, err
	}
	dependencies, err := b.dependencies(modules)
	if err != nil {
		return nil, err
	}
	file := "https://" + b.module + "/blob/" + b.version + "/"
	provenance := &slsa.Provenance{
		BuildDefinition: &slsa.BuildDefinition{
			BuildType:          file + "docs/install.md#releases",
			ExternalParameters: external, ResolvedDependencies: dependencies,
		},
		RunDetails: &slsa.RunDetails{
			Builder: &slsa.Builder{
				Id: cmp.Or(b.builderID, file+"Makefile"), Version: map[string]string{"go": runtime.Version()},
			},
		},
	}
	if err := provenance.Validate(); err != nil {
		return nil, err
	}
	content, err := protojson.Marshal(provenance)
	if err != nil {
		return nil, err
	}
	predicate := &structpb.Struct{}
	return predicate, protojson.Unmarshal(content, predicate)
}

// dependencies returns the commit, the version of Go, and the modules in the binaries with their checksums in go.sum.
func (b *builder) dependencies(modules []platform.Module) ([]*intoto.ResourceDescriptor, error) {
	annotations, err := structpb.NewStruct(map[string]any{"modified": b.dirty})
	if err != nil {
		return nil, err
	}
	all := []*intoto.ResourceDescriptor{{
		Uri:    "git+https://" + b.module,
		Digest: map[string]string{"gitCommit": strings.TrimSuffix(b.commit, "-dirty")}, Annotations: annotations,
	}}
	for _, module := range modules {
		descriptor := &intoto.ResourceDescriptor{Uri: module.PackageURL}
		if module.Sum != "" {
			sum, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(module.Sum, "h1:"))
			if err != nil {
				return nil, err
			}
			descriptor.Digest = map[string]string{"dirHash": hex.EncodeToString(sum)}
		}
		all = append(all, descriptor)
	}
	return all, nil
}

// stableJSON returns a message as JSON. The output of protojson has white space that differs between programs.
func stableJSON(message proto.Message) ([]byte, error) {
	content, err := protojson.Marshal(message)
	if err != nil {
		return nil, err
	}
	var compact, out bytes.Buffer
	if err := json.Compact(&compact, content); err != nil {
		return nil, err
	}
	if err := json.Indent(&out, compact.Bytes(), "", "  "); err != nil {
		return nil, err
	}
	out.WriteByte('\n')
	return out.Bytes(), nil
}
