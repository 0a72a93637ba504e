"""SHA-256, as on Maven Central, of the jars that run in a user's processes.

``KAFKA`` are all jars of ``DEFAULT_KAFKA_VERSION``, ``SOURCE`` the four of ``kafka-eos jars``. A name holds its version, so these hashes
also hold for the same jars of another Kafka. To write the list again, empty KAFKA and run ``sha256sum`` in the folders of the cache.
"""

from __future__ import annotations

KAFKA = {
    "HdrHistogram-2.2.2.jar": "22d1d4316c4ec13a68b559e98c8256d69071593731da96136640f864fa14fad8",
    "argparse4j-0.7.0.jar": "65ceb669d88f63306c680f8088bbf765bbca72d288a61a03703000076c3d3f56",
    "caffeine-3.2.0.jar": "ec411dfdf0c03f25218648ce89861630b71680e5858a9a7278ebac8e55cab3d7",
    "commons-beanutils-1.11.0.jar": "9e44ba68ec9a3f21286fa2a8bbb003b735c0f69101bb43144b79f4f8aaa74709",
    "commons-collections-3.2.2.jar": "eeeae917917144a68a741d4c0dff66aa5c5c5fd85593ff217bced3fc8ca783b8",
    "commons-digester-2.1.jar": "e0b2b980a84fc6533c5ce291f1917b32c507f62bcad64198fff44368c2196a3d",
    "commons-logging-1.3.5.jar": "6d7a744e4027649fbb50895df9497d109f98c766a637062fe8d2eabbb3140ba4",
    "commons-validator-1.10.1.jar": "ed74711a78d793ca37f6075e4a1e93d107233dfd20d0bb17e32bad88d38e56aa",
    "hash4j-0.22.0.jar": "23028a3fd006e530bf495f551083208187cafd8f80624d048eba56442f16a50e",
    "jackson-annotations-2.21.jar": "53ca085f4a150f703f49e1aabd935bd03b43e1ea3d55d135438292af22cef56b",
    "jackson-core-2.21.6.jar": "36111c3a4372cd5c2be6f4ec44a050382487920f3fc38ca3015c9c1678bd7c56",
    "jackson-databind-2.21.6.jar": "62134a98de12d0a421cd2f5b9854c8e63f10f524b0341e66cfd31a4326f6a329",
    "jackson-dataformat-csv-2.21.6.jar": "c09d467ed9c4c08afb484717d7bb1fb05168a23ffe779705732d28a5d02eb9c3",
    "jackson-dataformat-yaml-2.21.6.jar": "e5a4ea8c86f9f8d068bb280b69be5c450f263343b4bf1d81be8586d4e8d5c698",
    "jackson-datatype-jdk8-2.21.6.jar": "ffcb606cc9fec4ad22c096fdc101bf1b6eb17b5f53c741ab306632ecdf4a438e",
    "jopt-simple-5.0.4.jar": "df26cc58f235f477db07f753ba5a3ab243ebe5789d9f89ecf68dd62ea9a66c28",
    "jose4j-0.9.6.jar": "7314af50cde9c99e8eaf43eee617a23edcc6bb43036221064355094999d837ef",
    "jspecify-1.0.0.jar": "1fad6e6be7557781e4d33729d49ae1cdc8fdda6fe477bb0cc68ce351eafdfbab",
    "kafka-clients-4.2.2.jar": "109b6c65c134fd65a424563c8377510f4d42e278e9fef0961d0450173e65496a",
    "kafka-coordinator-common-4.2.2.jar": "6ed594d419f9eb6fb61c039217b52d12344e184406ef9e48ea52215cb0114dff",
    "kafka-group-coordinator-4.2.2.jar": "755209e172e973985956f518f55a9cc8c3773e74acc17b0a9f0df83c7924c3f0",
    "kafka-group-coordinator-api-4.2.2.jar": "7d9df37a377d954647bd262c6d831d927b471546358ecb11e569e3d95e6f6158",
    "kafka-metadata-4.2.2.jar": "6f0d379786284d95b5f940ade40b643a2b002b745aa63da19af1f5c05ef0e27c",
    "kafka-raft-4.2.2.jar": "4e16228752bee90bd74c9fffc97ec7dbfbd35a9306c1794b2ed6470d37eb75e5",
    "kafka-server-4.2.2.jar": "2b0b2ead465a11d05842e8037a34b752654f807f1414592cc045e6d5b1c59bd2",
    "kafka-server-common-4.2.2.jar": "86f242a86e70c5c935b653ef03008ebf2cf58340b9eeaa237852812196c42938",
    "kafka-share-coordinator-4.2.2.jar": "26e7749621607cbe079db3f7a9063cc37f2623d2830531cd175c4d9d3064b4c7",
    "kafka-storage-4.2.2.jar": "d92fd95e42fac5f6d7fda3e1272fea8f532e0bdc36f0dbe986f42ec7417660b3",
    "kafka-storage-api-4.2.2.jar": "19fa19ce665cc3387831e5a29cc95f484c7221862291f89b74b5fec84b11febe",
    "kafka-tools-api-4.2.2.jar": "545cd9883b09c4dc8bb56852c8b5d66a3263d800eb0ceeb42fa285e751818164",
    "kafka-transaction-coordinator-4.2.2.jar": "8ee820639e6f934bb00d45482456bf2ff36ab9a068eb3de8e1de2eb91b3f2806",
    "kafka_2.13-4.2.2.jar": "9cb5c9e3851ec3892bfbf0541e11f703ebde01d4360fbd183d1712eecedf2af0",
    "log4j-api-2.25.5.jar": "64777f73ea0b3104c04eb82befbdccc30a425a19e83ad06cb2f93aa303511863",
    "log4j-core-2.25.5.jar": "050c4f85deb48b055e9c041ac39043fbb79ce477841a11a1eb2969c86c6a0072",
    "lz4-java-1.11.2.jar": "8a7458657938e9b692224db83aac458c13abd7a59ab75c3d3b08bd2233a646a2",
    "metrics-core-2.2.0.jar": "6b7a14a6f34c10f8683f7b5e2f39df0f07b58c7dff0e468ebbc713905c46979c",
    "pcollections-4.0.2.jar": "2bbeef5797a241300c4f7513cd546239629ed7deda4fc0c31df90bb95f5f13ef",
    "re2j-1.8.jar": "7b52c72156dd7f98b3237a5b35c1d34fba381b21048c89208913ad80a45dfbd7",
    "scala-library-2.13.17.jar": "b7822c4225243215f185925724a6edff92cf18777a136cc738276c4446fac76c",
    "scala-logging_2.13-3.9.6.jar": "0ad0c3f4d89d538b3b6c300158555e266aa69cf1b5f6522aba8b5bad238eb994",
    "scala-reflect-2.13.17.jar": "734533897bcfabe7a6e7fa09dbee165b257b0396e14e8a57c75111db8e04bb98",
    "slf4j-api-1.7.36.jar": "d3ef575e3e4979678dc01bf1dcce51021493b4d11fb7f1be8ad982877c16a1c0",
    "slf4j-simple-1.7.36.jar": "2f39bed943d624dfa8f4102d0571283a10870b6aa36f197a8a506f147010c10f",
    "snakeyaml-2.5.jar": "e6682acf1ace77508ef13649cbf4f8d09d2cf5457bdb61d25ffb6ac0233d78dd",
    "snappy-java-1.1.10.7.jar": "4c766cb3f855415ee734b2392949a0b6f12a60879334a74518deaf6270d32e36",
    "zstd-jni-1.5.6-10.jar": "b6c3237e24b8252a5a9c3a0e1ae30ef8f323412e74bd358548b7a9e527d676df",
}
SOURCE = {
    "spark-sql-kafka-0-10_2.13-4.2.0.jar": "64539c45e5d39f7ddb747312c239f38f5208d08c1a0ddf7d70beb2fbd9373705",
    "spark-token-provider-kafka-0-10_2.13-4.0.0.jar": "f2be3b76f9e6cbe63379d4e4e0dc14f59dbf056ae2ad16ff15ac108004c86767",
    "commons-pool2-2.12.0.jar": "6d3bd18df8410f3e31b031aca582cc109342358a62a2759ebd0c4cdf30d06f8b",
    "kafka-clients-3.9.1.jar": "7568b998572d256f0b7bc0afdc1b7a2588b8b08415c62ce314c864a6851ae9d9",
}
