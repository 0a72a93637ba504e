"""The module that ``protoc --python_out`` makes of ``orders.proto`` in docs/records.md, made without protoc."""

from google.protobuf import descriptor_pb2, descriptor_pool
from google.protobuf.internal import builder

_LONG, _STRING = descriptor_pb2.FieldDescriptorProto.TYPE_INT64, descriptor_pb2.FieldDescriptorProto.TYPE_STRING
_FILE = descriptor_pb2.FileDescriptorProto(name="orders.proto", syntax="proto3")
_ORDER = _FILE.message_type.add(name="Order")
_ORDER.field.add(name="id", number=1, type=_LONG, label="LABEL_OPTIONAL")
_ORDER.field.add(name="customer", number=2, type=_STRING, label="LABEL_OPTIONAL")
builder.BuildTopDescriptorsAndMessages(
    descriptor_pool.Default().AddSerializedFile(_FILE.SerializeToString()), "orders_pb2", globals()
)
