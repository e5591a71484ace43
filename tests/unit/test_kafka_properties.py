"""What a client.properties file becomes for librdkafka, which writes transactions, and what it cannot become."""

from __future__ import annotations

import pytest

from sluice.core.errors import BadSettings
from sluice.streams.kafka_properties import KafkaProperties

LOGIN = 'org.apache.kafka.common.security.scram.ScramLoginModule required username="alice" password="open \\"sesame\\"";'


def test_properties_have_the_same_effect_in_librdkafka() -> None:
    properties = KafkaProperties(
        {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.jaas.config": LOGIN,
            "ssl.truststore.location": "/ca.pem",
            "ssl.truststore.type": "PEM",
            "ssl.keystore.location": "/client.pem",
            "ssl.keystore.type": "PEM",
            "ssl.endpoint.identification.algorithm": "",
            "compression.type": "zstd",
            "max.request.size": "2000000",
            "fetch.max.wait.ms": "10",
        }
    )
    assert properties.librdkafka_properties() == {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "alice",
        "sasl.password": 'open "sesame"',
        "ssl.ca.location": "/ca.pem",
        "ssl.certificate.location": "/client.pem",
        "ssl.key.location": "/client.pem",
        "ssl.endpoint.identification.algorithm": "none",
        "compression.type": "zstd",
        "message.max.bytes": "2000000",
    }


@pytest.mark.parametrize("name", ["sasl.login.callback.handler.class", "ssl.provider", "ssl.engine.factory.class"])
def test_a_property_without_an_equivalent_is_refused_by_name(name: str) -> None:
    with pytest.raises(BadSettings, match=rf"{name} has no equivalent in librdkafka.*at-least-once"):
        KafkaProperties({name: "com.example.Handler"}).librdkafka_properties()


def test_a_key_store_of_java_is_refused_with_what_to_use() -> None:
    with pytest.raises(BadSettings, match=r"ssl\.truststore\.type must be PEM.*keytool"):
        KafkaProperties({"security.protocol": "SSL", "ssl.truststore.location": "/trust.jks"})


def test_a_jaas_login_without_a_name_and_a_password_is_refused() -> None:
    krb5 = 'com.sun.security.auth.module.Krb5LoginModule required useKeyTab=true keyTab="/kafka.keytab";'
    with pytest.raises(BadSettings, match=r"sasl\.mechanism must be one of PLAIN, SCRAM"):
        KafkaProperties({"security.protocol": "SASL_SSL", "sasl.mechanism": "GSSAPI", "sasl.jaas.config": krb5})
    with pytest.raises(BadSettings, match=r"sasl\.jaas\.config needs username"):
        KafkaProperties({"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "sasl.jaas.config": krb5})
